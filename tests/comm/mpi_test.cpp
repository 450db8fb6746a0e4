// SPDX-License-Identifier: Apache-2.0
// The backend mpi: every conformance case that applies to it, on ranks that mpirun starts, and what is particular about
// it.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>
#include <sys/prctl.h>

#include <csignal>
#include <cstdlib>
#include <iostream>

#include "espalier/base/error.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/world.hpp"
#include "tests/comm/conformance.hpp"
#include "tests/support/program.hpp"

namespace espalier::conformance {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing_support::Program;

const std::string kEspalier = ESPALIER_TEST_BIN "/espalier";
const std::string kProbe = ESPALIER_TEST_BIN "/world_probe";
constexpr milliseconds kLimit(60'000);
constexpr Promises kPromises{.ordered_sums = false,
                             .small_arenas = false,
                             .names_mismatch = false,
                             .names_mismatched_messages = false,
                             .names_leavers = false};

// This program again, as `size` ranks that run one of the bodies below. The last word tells its processes from others.
std::string marker() { return fmt::format("ranks-of-{}", getpid()); }
std::unique_ptr<Program> ranks(std::int64_t size, const std::string& body) {
  return std::make_unique<Program>(
      std::vector<std::string>{kEspalier, "run", "--backend", "mpi", "-n", std::to_string(size), "--",
                               ESPALIER_TEST_BIN "/test_mpi", marker()},
      std::map<std::string, std::string>{{"ESPALIER_TEST_BODY", body}});
}

class MpiConformance : public testing::Test {
 public:
  MpiConformance(std::string name, std::int64_t size) : name_(std::move(name)), size_(size) {}
  void TestBody() override {
    const auto program = ranks(size_, name_);
    EXPECT_EQ(program->wait(kLimit), 0) << program->output() << program->error();
  }

 private:
  const std::string name_;
  const std::int64_t size_;
};

void register_cases() {
  for (const Case& one : cases()) {
    if (!one.applies(kPromises)) continue;
    const std::int64_t size = one.sizes.back();
    testing::RegisterTest("Conformance/Mpi", fmt::format("{}_{}", one.name, size).c_str(), nullptr, nullptr, __FILE__,
                          __LINE__,
                          [&one, size] { return static_cast<testing::Test*>(new MpiConformance(one.name, size)); });
  }
}

// ---- starting ----

TEST(Mpi, IsStartedByEspalierRun) {
  Program program({kEspalier, "run", "--backend", "mpi", "-n", "3", "--", kProbe});
  EXPECT_EQ(program.wait(kLimit), 0) << program.output() << program.error();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(program.output(),
                HasSubstr(fmt::format("rank {} of 3 local {} of 3 mpi Open MPI sum 6\n", rank, rank)));
  }
}

TEST(Mpi, MakesOneWorldAfterAnother) {
  Program program({kEspalier, "run", "--backend", "mpi", "-n", "2", "--", kProbe, "worlds"});
  EXPECT_EQ(program.wait(kLimit), 0) << program.output() << program.error();
}

TEST(Mpi, MakesEveryPlan) {
  Program program({kEspalier, "run", "--backend", "mpi", "-n", "4", "--", kProbe, "plans"});
  EXPECT_EQ(program.wait(kLimit), 0) << program.output() << program.error();
}

TEST(Mpi, IsRefusedWhereMpiDidNotStartTheRanks) {
  Program program({kEspalier, "run", "-n", "2", "--", kProbe}, {{"ESPALIER_BACKEND", "mpi"}});
  EXPECT_EQ(program.wait(kLimit), 2) << program.output() << program.error();
  EXPECT_THAT(program.output(),
              HasSubstr("backend mpi needs ranks that MPI starts, but espalier run started this one"));
  EXPECT_THAT(program.output(), HasSubstr("espalier run --backend mpi -n 2 -- PROGRAM"));
}

TEST(Mpi, IsRefusedWhereItKnowsOfFewerRanksThanTheVariables) {
  Program program({kProbe}, {{"OMPI_COMM_WORLD_RANK", "0"},
                             {"OMPI_COMM_WORLD_SIZE", "2"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});  // several hosts: mpi is the choice
  EXPECT_EQ(program.wait(kLimit), 2) << program.output() << program.error();
  EXPECT_THAT(program.output(),
              HasSubstr("MPI says rank 0 of 1, but OMPI_COMM_WORLD_RANK=0 and OMPI_COMM_WORLD_SIZE=2"));
}

TEST(Mpi, LeavesItsLifeToAProgramThatInitialisedIt) {
  const auto program = ranks(2, "ProgramOwnsMpi");
  EXPECT_EQ(program->wait(kLimit), 0) << program->output() << program->error();
}

TEST(Mpi, NeedsAProgramThatInitialisesItForThreads) {
  const auto program = ranks(2, "ProgramInitialisesForOneThread");
  EXPECT_EQ(program->wait(kLimit), 2) << program->output() << program->error();
  EXPECT_THAT(program->output(), HasSubstr("worlds need MPI_THREAD_MULTIPLE (3); initialise it with MPI_Init_thread("));
}

// ---- messages ----

TEST(Mpi, TakesMemoryThatIsReadAndWritten) {
  const auto program = ranks(3, "InPlace");
  EXPECT_EQ(program->wait(kLimit), 0) << program->output() << program->error();
}

TEST(Mpi, FinishesADroppedReductionOfFloat16) {
  const auto program = ranks(3, "DroppedFloat16");
  EXPECT_EQ(program->wait(kLimit), 0) << program->output() << program->error();
}

TEST(Mpi, SaysThatAMessageIsShorterThanItsTensor) {
  const auto program = ranks(2, "ShortMessage");
  EXPECT_EQ(program->wait(kLimit), 3) << program->output() << program->error();
  EXPECT_THAT(program->output(),
              HasSubstr("recv(float32 x 4) from rank 0, tag 9, #0 of group 'world' [0,1] failed on rank 1: "
                        "12 bytes came instead of 16"));
}

TEST(Mpi, SaysThatAMessageIsLongerThanItsTensor) {
  const auto program = ranks(2, "LongMessage");
  EXPECT_EQ(program->wait(kLimit), 3) << program->output() << program->error();
  EXPECT_THAT(program->output(),
              HasSubstr("recv(float32 x 2) from rank 0, tag 9, #0 of group 'world' [0,1] failed on rank 1: "
                        "MPI_ERR_TRUNCATE: message truncated"));
}

// ---- ranks that fail: the job ends, at the latest at the deadline of the others ----

void expect_end(const std::string& body, int code, const std::string& text) {
  const auto program = ranks(3, body);
  EXPECT_EQ(program->wait(milliseconds(30'000)), code) << program->output() << program->error();
  EXPECT_THAT(program->output(), HasSubstr(text));
  EXPECT_TRUE(testing_support::eventually([] { return testing_support::count_processes(marker()) == 0; }));
}

TEST(Mpi, EndsAtTheDeadlineAlthoughMpiCannotCancel) {
  expect_end("NeverSends", 3, "recv(float32 x 4) from rank 1, tag 9, #0 of group 'world' [0,1,2] timed out after 1");
}
TEST(Mpi, NamesTheMemberThatDoesNotConnect) {
  expect_end("MemberDoesNotConnect", 3, "group 'some' [0,1,2]: not connected within 2000 ms; rank 2 did not come");
}
TEST(Mpi, WaitsForTheRanksOfAWorldUntilTheDeadlineOnly) {
  expect_end("RankMakesNoWorld", 3, "world: not all ranks that MPI started came within 2000 ms");
}
TEST(Mpi, EndsSoonAfterARankWasKilled) { expect_end("RankIsKilled", 128 + SIGKILL, ""); }
TEST(Mpi, EndsSoonAfterARankFailed) { expect_end("RankFails", 1, "rank 2 fails"); }
TEST(Mpi, EndsAtTheDeadlineWhenARankHasStopped) { expect_end("RankStops", 3, "timed out after 2"); }
TEST(Mpi, EndsAtTheDeadlineWhenARankHasLeft) { expect_end("RankLeaves", 3, "timed out after 2"); }

// A thread of ours may be calling MPI just then.
TEST(Mpi, EndsWithTheProcessWhateverIsUnderWay) {
  expect_end("ExitsWithWorkUnderWay", 7, "");
  const auto program = ranks(3, "ExitsWithItsWorld");
  EXPECT_EQ(program->wait(kLimit), 0) << program->output() << program->error();
}

// ---- bodies of ranks ----

std::int64_t mpi_rank() { return std::stol(std::getenv("OMPI_COMM_WORLD_RANK")); }

World make_world(milliseconds timeout) {
  WorldOptions options;
  options.backend = Backend::mpi;
  options.timeout = timeout;
  return World::from_environment(options);
}

void expect_sum(const World& world) {
  at::Tensor sum = at::ones({5});
  all_reduce_(sum, world.group()).wait();
  if (!sum.equal(at::full({5}, double(world.size())))) throw std::runtime_error("a wrong sum");
}

void send_to_another_size(std::int64_t sent, std::int64_t received) {
  const World world = make_world(milliseconds(20'000));
  at::Tensor tensor = at::zeros({world.rank() == 0 ? sent : received});
  if (world.rank() == 0) send(tensor, world.group(), 1, 9).wait();
  if (world.rank() == 1) recv(tensor, world.group(), 0, 9).wait();
  barrier(world.group()).wait();
}

// The last of three ranks does something else than to reduce.
void reduce_without_the_last(milliseconds timeout, const std::function<void()>& something_else) {
  const World world = make_world(timeout);
  expect_sum(world);
  if (world.rank() == 2) return something_else();
  expect_sum(world);
}

void run_own_mpi(int level) {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, level, &provided);
  expect_sum(make_world(milliseconds(20'000)));
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
}

void reduce_in_place() {
  const World world = make_world(milliseconds(20'000));
  const std::int64_t rank = world.rank(), size = world.size();
  at::Tensor all = at::full({size, 4}, -1.0);
  all.select(0, rank).fill_(double(rank));
  all_gather_into(all, all.select(0, rank), world.group()).wait();
  if (!all.equal(at::arange(size, at::kFloat).view({size, 1}).expand({size, 4})))
    throw std::runtime_error("gathered wrongly");
  at::Tensor mine = all.select(0, rank);
  reduce_scatter_into(mine, all, world.group()).wait();
  if (!mine.equal(at::full({4}, double(rank * size)))) throw std::runtime_error("scattered wrongly");
}

// float16 travels as float32, so there is something to do after the reduction.
void drop_a_reduction_of_float16() {
  const World world = make_world(milliseconds(20'000));
  at::Tensor sum = at::full({1000}, double(world.rank()), at::kHalf);
  {
    const Work dropped = all_reduce_(sum, world.group());
  }
  for (int i = 0; i < 20; ++i) expect_sum(world);  // later calls finish it
  if (!sum.equal(at::full({1000}, 3.0, at::kHalf))) throw std::runtime_error("the sum was dropped too");
}

const std::map<std::string, std::function<void()>>& bodies() {
  static const std::map<std::string, std::function<void()>> all{
      {"ProgramOwnsMpi", [] { run_own_mpi(MPI_THREAD_MULTIPLE); }},
      {"ProgramInitialisesForOneThread", [] { run_own_mpi(MPI_THREAD_SINGLE); }},
      {"InPlace", reduce_in_place},
      {"DroppedFloat16", drop_a_reduction_of_float16},
      {"ShortMessage", [] { send_to_another_size(3, 4); }},
      {"LongMessage", [] { send_to_another_size(3, 2); }},
      {"NeverSends",
       [] {
         const World world = make_world(milliseconds(60'000));
         at::Tensor tensor = at::zeros({4});
         if (world.rank() == 0) recv(tensor, world.group(), 1, 9).wait(milliseconds(100));
         barrier(world.group()).wait();
       }},
      {"MemberDoesNotConnect",
       [] {
         const World world = make_world(milliseconds(2000));
         if (world.rank() == 2) std::this_thread::sleep_for(milliseconds(20'000));
         (void)world.group().duplicate("some");
       }},
      {"RankMakesNoWorld",
       [] {
         int level = 0;
         if (mpi_rank() == 2) MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
         if (mpi_rank() == 2) std::this_thread::sleep_for(milliseconds(20'000));
         make_world(milliseconds(2000));
       }},
      {"ExitsWithWorkUnderWay",
       [] {
         const World world = make_world(milliseconds(60'000));
         expect_sum(world);
         at::Tensor never = at::zeros({4}), large = at::zeros({1'000'000});
         const Work receiving = recv(never, world.group(), (world.rank() + 1) % 3, 9);
         const Work sending = send(large, world.group(), (world.rank() + 1) % 3, 8);
         std::exit(7);
       }},
      {"ExitsWithItsWorld",
       [] {
         const World world = make_world(milliseconds(60'000));
         expect_sum(world);
         at::Tensor large = at::zeros({1'000'000});
         send(large, world.group(), (world.rank() + 1) % 3, 8).wait();
         recv(large, world.group(), (world.rank() + 2) % 3, 8).wait();
         barrier(world.group()).wait();
         std::exit(0);
       }},
      {"RankIsKilled", [] { reduce_without_the_last(milliseconds(60'000), [] { std::raise(SIGKILL); }); }},
      {"RankFails",
       [] { reduce_without_the_last(milliseconds(60'000), [] { throw std::runtime_error("rank 2 fails"); }); }},
      {"RankStops", [] { reduce_without_the_last(milliseconds(2000), [] { std::raise(SIGSTOP); }); }},
      {"RankLeaves", [] { reduce_without_the_last(milliseconds(2000), [] {}); }},
  };
  return all;
}

void run_body(const std::string& name) {
  if (const auto found = bodies().find(name); found != bodies().end()) return found->second();
  for (const Case& one : cases()) {
    if (one.name != name) continue;
    World world = make_world(one.timeout);
    return one.body(world, kPromises);
  }
  throw std::runtime_error("there is no body '" + name + "'");
}

// main() of a rank; its exit code.
int run_rank(const std::string& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // where a test gives up, mpirun is killed
  at::set_num_threads(1);
  try {
    run_body(body);
    return 0;
  } catch (const ConfigError& error) {
    std::cout << error.what() << std::endl;
    return 2;
  } catch (const CommError& error) {
    std::cout << error.what() << std::endl;
    return 3;
  } catch (const std::exception& error) {
    std::cout << error.what() << std::endl;
    return 1;
  }
}

}  // namespace
}  // namespace espalier::conformance

int main(int argc, char** argv) {
  if (const char* body = std::getenv("ESPALIER_TEST_BODY")) return espalier::conformance::run_rank(body);
  at::set_num_threads(1);
  testing::InitGoogleTest(&argc, argv);
  espalier::conformance::register_cases();
  return RUN_ALL_TESTS();
}
