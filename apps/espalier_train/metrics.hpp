// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace espalier::command {

struct MetricsRow {
  std::int64_t step = 0;
  double loss = 0.0;
  double grad_norm = 0.0;
  double lr = 0.0;
  double tokens_per_s = 0.0;
  // What averaging gradients or momentum over data took of rank 0: bytes sent, bytes that a ring all-reduce in fp32
  // sends, share of the step's time.
  std::int64_t averaging_bytes = 0;
  std::int64_t averaging_fp32_bytes = 0;
  double averaging_share = 0.0;
  bool skipped = false;                 // gradients were not finite: nothing was updated
  std::optional<double> val_loss = {};  // on the validation text, after this step; mostly there is none
  friend bool operator==(const MetricsRow&, const MetricsRow&) = default;
};

// metrics.csv of a run: a header line, then one row a step with every digit that is needed to get
// the same number back. Each row reaches the file with one write, so a killed run leaves at most
// one torn line, at the end.
class MetricsWriter {
 public:
  // Continues the file at `next_step`: rows from that step on (a run that got further than its last
  // checkpoint) are cut, as is a torn last line. 0, or where there is no file, starts anew. ConfigError,
  // with the path and line, when the file cannot be written or what is in it is no metrics file.
  MetricsWriter(std::string path, std::int64_t next_step);
  ~MetricsWriter();
  MetricsWriter(MetricsWriter&&) = delete;

  // ConfigError when the disk is full.
  void append(const MetricsRow& row);

  // All rows there are, those of earlier starts included.
  const std::vector<MetricsRow>& rows() const { return rows_; }

 private:
  std::string path_;
  std::vector<MetricsRow> rows_;
  int fd_ = -1;
};

// exp(loss), the perplexity of a mean loss in nats.
double perplexity(double loss);

// All whole rows. ConfigError, with path and line, for anything else than what MetricsWriter
// writes.
std::vector<MetricsRow> read_metrics(const std::string& path);

}  // namespace espalier::command
