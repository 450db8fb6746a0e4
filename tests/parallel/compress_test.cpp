// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "espalier/base/error.hpp"
#include "espalier/comm/run_ranks.hpp"
#include "espalier/parallel/compress/compressed_all_reduce.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/expect.hpp"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using testing_support::expect;
using Numbers = std::vector<double>;

// The same on every call with the same numbers.
Numbers input_of(std::int64_t rank, std::int64_t round, std::int64_t count) {
  std::mt19937 engine(static_cast<unsigned>(1000 * rank + round));
  std::normal_distribution<double> normal(0.3, 1.0);
  Numbers result(static_cast<std::size_t>(count));
  for (double& value : result) value = normal(engine);
  return result;
}

at::Tensor tensor_of(const Numbers& numbers, at::ScalarType dtype = at::kDouble) {
  return at::tensor(numbers, at::kDouble).to(dtype);
}

bool is_close(const at::Tensor& actual, const Numbers& expected, double tolerance) {
  const at::Tensor other = tensor_of(expected);
  if (actual.numel() != other.numel()) return false;
  return actual.numel() == 0 || (actual.flatten().to(at::kDouble) - other).abs().max().item<double>() <= tolerance;
}

// All members in one loop, in float64 and without bits: sign(x) times scale is what travels.
struct Simulation {
  Simulation(std::int64_t num_ranks, std::int64_t num_elems, bool padding_counts)
      : size(num_ranks), count(num_elems), padded(compressed_length(num_elems, num_ranks)), padding(padding_counts) {
    worker.assign(static_cast<std::size_t>(size), Numbers(static_cast<std::size_t>(padded)));
    server.assign(1, Numbers(static_cast<std::size_t>(padded)));
  }

  // values [begin, end) and their errors -> what travels; the errors become what it misses.
  Numbers compress(const Numbers& values, Numbers& errors, std::int64_t begin, std::int64_t end) const {
    const std::int64_t last = padding ? end : std::min(end, count);
    Numbers sent(static_cast<std::size_t>(padded));
    double squares = 0.0;
    for (std::int64_t i = begin; i < last; ++i) squares += (values[i] + errors[i]) * (values[i] + errors[i]);
    const double scale = last > begin ? std::sqrt(squares / static_cast<double>(last - begin)) : 0.0;
    for (std::int64_t i = begin; i < last; ++i) {
      const double element = values[i] + errors[i];
      sent[i] = element >= 0 ? scale : -scale;
      errors[i] = element - sent[i];
    }
    return sent;
  }

  Numbers step(std::int64_t round) {
    Numbers mean(static_cast<std::size_t>(padded));
    for (std::int64_t rank = 0; rank < size; ++rank) {
      Numbers values = input_of(rank, round, count);
      values.resize(static_cast<std::size_t>(padded));
      const Numbers sent = compress(values, worker[static_cast<std::size_t>(rank)], 0, padded);
      for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += sent[i] / static_cast<double>(size);
    }
    Numbers result(static_cast<std::size_t>(padded));
    for (std::int64_t begin = 0; begin < padded; begin += padded / size) {
      const Numbers sent = compress(mean, server[0], begin, begin + padded / size);
      for (std::size_t i = 0; i < result.size(); ++i) result[i] += sent[i];
    }
    result.resize(static_cast<std::size_t>(count));
    return result;
  }

  std::int64_t size, count, padded;
  bool padding;
  std::vector<Numbers> worker, server;
};

TEST(CompressedAllReduce, EqualsAPlainSimulationInBothModes) {
  for (std::int64_t size = 1; size <= 5; ++size) {
    for (const std::int64_t count : {1, 7, 8, 41, 1000, 20'011}) {
      for (const bool padding : {false, true}) {
        run_ranks(size, [&](World& world) {
          CompressedAllReduce compressed(world.group(), count, at::kDouble, {.padding_in_scale = padding});
          Simulation simulation(size, count, padding);
          for (std::int64_t round = 0; round < 3; ++round) {
            const std::string where = std::to_string(count) + " elements, round " + std::to_string(round);
            at::Tensor tensor = tensor_of(input_of(world.rank(), round, count));
            compressed.mean_(tensor);
            expect(is_close(tensor, simulation.step(round), 1e-10), "result of " + where);
            expect(
                is_close(compressed.worker_error(), simulation.worker[static_cast<std::size_t>(world.rank())], 1e-10),
                "worker error of " + where);
            const std::int64_t chunk = simulation.padded / size, begin = world.rank() * chunk;
            const Numbers mine(simulation.server[0].begin() + begin, simulation.server[0].begin() + begin + chunk);
            expect(is_close(compressed.server_error(), mine, 1e-10), "server error of " + where);
          }
        });
      }
    }
  }
}

TEST(CompressedAllReduce, KeepsThePaddingOutOfTheScale) {
  run_ranks(2, [](World& world) {
    at::Tensor tensor = at::full({9}, 2.0, at::kDouble);
    CompressedAllReduce ours(world.group(), 9, at::kDouble);
    ours.mean_(tensor);
    expect(is_close(tensor, Numbers(9, 2.0), 1e-15), "nine twos are nine twos");
    expect(ours.worker_error().count_nonzero().item<std::int64_t>() == 0, "nothing is missed");
    at::Tensor other = at::full({9}, 2.0, at::kDouble);
    CompressedAllReduce theirs(world.group(), 9, at::kDouble, {.padding_in_scale = true});
    theirs.mean_(other);
    expect(std::abs(theirs.last_message().worker_scale - 1.5) < 1e-15, "6 / sqrt(16)");
    expect(theirs.worker_error().narrow(0, 9, 7).count_nonzero().item<std::int64_t>() == 7, "padding gathers errors");
  });
}

// Error feedback: what one call misses comes with a later one. What is left is the error of the last calls over 400,
// which differs between the modes.
TEST(CompressedAllReduce, ComesToTheExactMeanOver400Rounds) {
  const std::vector<Numbers> inputs{{1, -2, 3, -4, 5, -6, 7, -8, 0, .5, -.5, .25, 2, -2},
                                    {-1, 2, -3, 4, 1, 1, 1, 1, -1, -1, -1, -1, 3, 3}};
  Numbers mean;
  for (std::size_t i = 0; i < inputs[0].size(); ++i) mean.push_back((inputs[0][i] + inputs[1][i]) / 2);
  for (const bool padding : {false, true}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      run_ranks(2, [&](World& world) {
        CompressedAllReduce compressed(world.group(), 14, dtype, {.padding_in_scale = padding});
        at::Tensor sum = at::zeros({14}, at::kDouble);
        for (int round = 0; round < 400; ++round) {
          at::Tensor tensor = tensor_of(inputs[static_cast<std::size_t>(world.rank())], dtype);
          compressed.mean_(tensor);
          sum.add_(tensor);
        }
        expect(is_close(sum.div(400), mean, padding ? 0.01401 : 0.028), "mean of 400 results");
      });
    }
  }
}

TEST(CompressedAllReduce, TakesSmallFloatsThroughFloat32) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    run_ranks(3, [&](World& world) {
      CompressedAllReduce small(world.group(), 41, dtype), full(world.group(), 41, at::kFloat);
      for (std::int64_t round = 0; round < 3; ++round) {
        at::Tensor tensor = tensor_of(input_of(world.rank(), round, 41), dtype), same = tensor.to(at::kFloat);
        small.mean_(tensor);
        full.mean_(same);
        expect(tensor.scalar_type() == dtype && tensor.equal(same.to(dtype)), "result");
        expect(small.worker_error().equal(full.worker_error()) && small.server_error().equal(full.server_error()),
               "errors");
      }
    });
  }
}

TEST(CompressedAllReduce, TakesTensorsOfAnyShapeAndStride) {
  run_ranks(2, [](World& world) {
    const at::Tensor values = tensor_of(input_of(world.rank(), 0, 35)).view({5, 7});
    at::Tensor plain = values.clone(), strided = values.t().contiguous().t();
    CompressedAllReduce first(world.group(), 35, at::kDouble), second(world.group(), 35, at::kDouble);
    first.mean_(plain);
    second.mean_(strided);
    expect(!strided.is_contiguous() && strided.equal(plain), "strided result");
  });
}

TEST(CompressedAllReduce, GoesOnBitByBitFromStateThatWasCopied) {
  run_ranks(3, [](World& world) {
    CompressedAllReduce first(world.group(), 41, at::kFloat), second(world.group(), 41, at::kFloat);
    for (std::int64_t round = 0; round < 6; ++round) {
      if (round == 3) {
        second.set_errors(first.worker_error(), first.server_error());
        expect(second.worker_error().equal(first.worker_error()) && second.server_error().equal(first.server_error()),
               "state");
      }
      at::Tensor tensor = tensor_of(input_of(world.rank(), round, 41), at::kFloat), same = tensor.clone();
      first.mean_(tensor);
      if (round < 3) continue;
      second.mean_(same);
      expect(same.equal(tensor), "round " + std::to_string(round));
    }
  });
}

TEST(CompressedAllReduce, RefusesWhatIsNotFiniteOnAllRanksAndSetsAllErrorsToZero) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                           -std::numeric_limits<double>::infinity()}) {
    run_ranks(3, [&](World& world) {
      CompressedAllReduce compressed(world.group(), 41, at::kFloat), anew(world.group(), 41, at::kFloat);
      for (std::int64_t round = 0; round < 5; ++round) {
        at::Tensor tensor = tensor_of(input_of(world.rank(), round, 41), at::kFloat), same = tensor.clone();
        if (round == 2) {
          if (world.rank() == 1) tensor[40] = bad;
          const at::Tensor before = tensor.clone();
          const std::string text = testing_support::error_of([&] { compressed.mean_(tensor); });
          expect(text.find("scales must be finite, but rank 1 has ") != std::string::npos &&
                     text.find("rank 0") == std::string::npos &&
                     text.find("all errors were set to zero") != std::string::npos,
                 text);
          expect(tensor.equal(before) || world.rank() == 1, "the tensor was changed");
          continue;
        }
        compressed.mean_(tensor);
        if (round < 2) continue;
        anew.mean_(same);
        expect(tensor.equal(same), "round " + std::to_string(round));
      }
    });
  }
}

TEST(CompressedAllReduce, RefusesAMeanThatIsTooLargeAndSetsAllErrorsToZero) {
  const std::vector<std::pair<at::ScalarType, double>> cases{{at::kFloat, 3e38}, {at::kHalf, 60'000}};
  for (const auto& [dtype, large] : cases) {
    run_ranks(2, [&, dtype = dtype, large = large](World& world) {
      CompressedAllReduce compressed(world.group(), 32, dtype);
      if (world.rank() == 1) compressed.set_errors(compressed.worker_error(), compressed.server_error().fill_(large));
      at::Tensor tensor = at::full({32}, large, at::kDouble).to(dtype), before = tensor.clone();
      const std::string text = testing_support::error_of([&] { compressed.mean_(tensor); });
      expect(text.find("of the mean must be finite in") != std::string::npos &&
                 text.find("rank 1 has ") != std::string::npos &&
                 text.find("all errors were set to zero") != std::string::npos,
             text);
      expect(tensor.equal(before), "the tensor was changed");
      expect(compressed.worker_error().count_nonzero().item<std::int64_t>() == 0 &&
                 compressed.server_error().count_nonzero().item<std::int64_t>() == 0,
             "errors");
    });
  }
}

TEST(CompressedAllReduce, CountsTheBytesItHandsToTheTransport) {
  for (std::int64_t size = 1; size <= 5; ++size) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      run_ranks(size, [&](World& world) {
        CompressedAllReduce compressed(world.group(), 1000, dtype);
        const std::int64_t before = world.bytes_sent();
        for (std::int64_t round = 0; round < 2; ++round) {
          at::Tensor tensor = tensor_of(input_of(world.rank(), round, 1000), dtype);
          compressed.mean_(tensor);
        }
        const std::int64_t scale = dtype == at::kFloat ? 4 : 8;
        const std::int64_t expected = 2 * (size - 1) * (compressed.padded_elems() / (4 * size) + 2 * scale);
        expect(compressed.bytes_sent() == expected, "formula: " + std::to_string(compressed.bytes_sent()));
        expect(world.bytes_sent() - before == expected, "transport: " + std::to_string(world.bytes_sent() - before));
      });
    }
  }
}

TEST(CompressedAllReduce, RefusesWhatCannotWorkWithTheNumbersThatCan) {
  run_ranks(3, [](World& world) {
    const auto text = [&](std::int64_t count, at::ScalarType dtype, CompressionOptions options = {}) {
      return testing_support::error_of([&] { CompressedAllReduce(world.group(), count, dtype, options); });
    };
    expect(text(16, at::kFloat, {.padded_elems = 16}).find("multiple of 8 bits x 3 ranks = 24") != std::string::npos,
           "multiple");
    expect(text(30, at::kFloat, {.padded_elems = 24}).find("for example 48") != std::string::npos, "too small");
    expect(text(-1, at::kFloat).find("-1 elements") != std::string::npos, "negative");
    expect(text(16, at::kInt).find("dtype Int; expected float64") != std::string::npos, "dtype");
    expect(text(world.rank() == 2 ? 17 : 16, at::kFloat).find("17 elements") != std::string::npos, "disagreement");
    CompressedAllReduce compressed(world.group(), 16, at::kFloat);
    at::Tensor tensor = at::zeros({15});
    expect(testing_support::error_of([&] {
             compressed.mean_(tensor);
           }).find("15 elements of Float; it was made for 16 of Float") != std::string::npos,
           "tensor");
  });
}

// ---- state for another number of ranks ----

at::Tensor mean_worker_error(const CompressionErrors& errors, std::int64_t count) {
  at::Tensor sum = at::zeros({count}, at::kDouble);
  for (const at::Tensor& worker : errors.worker) sum += worker.narrow(0, 0, count);
  return sum / static_cast<double>(errors.worker.size());
}

at::Tensor server_errors(const CompressionErrors& errors, std::int64_t count) {
  return at::cat(errors.server).narrow(0, 0, count);
}

// The state after `rounds` more calls on as many ranks as `errors` has; the results are added to `sum`.
CompressionErrors train(const CompressionErrors& errors, std::int64_t count, std::int64_t first_round,
                        std::int64_t rounds, at::Tensor& sum) {
  CompressionErrors after = errors;
  run_ranks(static_cast<std::int64_t>(errors.worker.size()), [&](World& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    CompressedAllReduce compressed(world.group(), count, errors.worker[0].scalar_type());
    compressed.set_errors(errors.worker[rank], errors.server[rank]);
    for (std::int64_t round = first_round; round < first_round + rounds; ++round) {
      at::Tensor tensor = tensor_of(input_of(world.rank(), round, count), errors.worker[0].scalar_type());
      compressed.mean_(tensor);
      if (world.rank() == 0) sum += tensor;
    }
    after.worker[rank] = compressed.worker_error();
    after.server[rank] = compressed.server_error();
  });
  return after;
}

CompressionErrors zero_errors(std::int64_t size, std::int64_t count, at::ScalarType dtype) {
  const std::int64_t padded = compressed_length(count, size);
  CompressionErrors errors;
  for (std::int64_t rank = 0; rank < size; ++rank) {
    errors.worker.push_back(at::zeros({padded}, dtype));
    errors.server.push_back(at::zeros({padded / size}, dtype));
  }
  return errors;
}

TEST(Recut, KeepsMeanWorkerErrorAndServerErrorFrom4To2To4) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const std::int64_t count : {1, 41, 64, 1003}) {
      at::Tensor sum = at::zeros({count}, at::kDouble);
      const CompressionErrors four = train(zero_errors(4, count, dtype), count, 0, 3, sum);
      const CompressionErrors two = recut(four, count, 2), back = recut(two, count, 4);
      ASSERT_EQ(two.worker.size(), 2u);
      ASSERT_EQ(back.worker.size(), 4u);
      EXPECT_EQ(two.worker[1].numel(), compressed_length(count, 2));
      EXPECT_EQ(two.server[1].numel(), compressed_length(count, 2) / 2);
      EXPECT_GT(server_errors(four, count).abs().max().item<double>(), count == 1 ? -1.0 : 0.0);
      const at::Tensor mean = mean_worker_error(four, count);
      const double rounding = (dtype == at::kFloat ? 6e-8 : 2e-16) * mean.abs().max().item<double>();
      EXPECT_LE((mean_worker_error(two, count) - mean).abs().max().item<double>(), rounding) << count;
      EXPECT_TRUE(mean_worker_error(back, count).equal(mean_worker_error(two, count))) << count;
      EXPECT_TRUE(server_errors(two, count).equal(server_errors(four, count))) << count;
      EXPECT_TRUE(server_errors(back, count).equal(server_errors(four, count))) << count;
    }
  }
}

// Results so far, mean worker error and server error add up to the exact means, whatever the number of ranks was.
TEST(Recut, LosesNothingInTheMiddleOfTraining) {
  constexpr std::int64_t kCount = 41;
  at::Tensor results = at::zeros({kCount}, at::kDouble), exact = at::zeros({kCount}, at::kDouble);
  CompressionErrors errors = zero_errors(4, kCount, at::kDouble);
  std::int64_t round = 0;
  for (const std::int64_t size : {4, 2, 3, 1, 5, 4}) {
    errors = train(recut(errors, kCount, size), kCount, round, 3, results);
    for (std::int64_t end = round + 3; round < end; ++round) {
      for (std::int64_t rank = 0; rank < size; ++rank)
        exact += tensor_of(input_of(rank, round, kCount)) / static_cast<double>(size);
    }
    const at::Tensor all = results + mean_worker_error(errors, kCount) + server_errors(errors, kCount);
    EXPECT_LT((all - exact).abs().max().item<double>(), 1e-12) << size;
  }
}

TEST(Recut, GivesBackStateThatHasTheShapeAlready) {
  at::Tensor sum = at::zeros({41}, at::kDouble);
  const CompressionErrors three = train(zero_errors(3, 41, at::kFloat), 41, 0, 2, sum), same = recut(three, 41, 3);
  for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_TRUE(same.worker[rank].equal(three.worker[rank]));
  EXPECT_FALSE(same.worker[0].equal(same.worker[1]));
}

TEST(Recut, RefusesTensorsThatDoNotFitTogether) {
  CompressionErrors errors = zero_errors(2, 32, at::kFloat);
  EXPECT_THAT(testing_support::error_of([&] { recut(errors, 33, 4); }), HasSubstr("not below 33"));
  EXPECT_THAT(testing_support::error_of([&] { recut(errors, 32, 3, 32); }), HasSubstr("expected a multiple of 24"));
  EXPECT_THAT(testing_support::error_of([&] { recut({}, 32, 3); }), HasSubstr("0 worker errors and 0 server errors"));
  errors.server[1] = at::zeros({15});
  EXPECT_THAT(testing_support::error_of([&] { recut(errors, 32, 4); }),
              HasSubstr("server error of rank 1 has 15 elements of Float; expected 16"));
}

}  // namespace
}  // namespace espalier
