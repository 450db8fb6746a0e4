// SPDX-License-Identifier: Apache-2.0
// Plain MPI, blocking calls on a program's own memory: median microseconds of an in-place all-reduce of float32 for
// each size, and of a 1 KiB ping-pong, the slowest rank's. To compare `espalier bench` with; no part of the build:
//   mpicxx -O2 bench/peers/mpi.cpp -o mpi_peer && mpirun -n 2 ./mpi_peer
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <vector>

namespace {

template <class Body>
double median_us(int rounds, const Body& body) {
  std::vector<double> times;
  for (int round = -3; round < rounds; ++round) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    body();
    double mine = (MPI_Wtime() - start) * 1e6, slowest = 0;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (round >= 0) times.push_back(slowest);
  }
  std::nth_element(times.begin(), times.begin() + static_cast<long>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const int bytes : {1 << 10, 1 << 20, 64 << 20}) {
    std::vector<float> data(static_cast<std::size_t>(bytes) / sizeof(float), 0.0F);
    const int repeats = bytes <= 1 << 10 ? 100 : 1;  // the clock is coarser than small ones
    const double time = median_us(bytes <= 1 << 20 ? 200 : 15, [&] {
      for (int i = 0; i < repeats; ++i)
        MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    });
    if (rank == 0) std::printf("all_reduce %9d bytes, %d ranks: %10.2f us\n", bytes, size, time / repeats);
  }
  std::vector<char> ball(1024);
  const double time = median_us(200, [&] {
    for (int i = 0; i < 100 && rank < 2; ++i) {
      if (rank == 0) MPI_Send(ball.data(), 1024, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
      MPI_Recv(ball.data(), 1024, MPI_CHAR, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      if (rank == 1) MPI_Send(ball.data(), 1024, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
    }
  });
  if (rank == 0) std::printf("ping-pong 1024 bytes, there and back: %.2f us\n", time / 100);
  MPI_Finalize();
  return 0;
}
