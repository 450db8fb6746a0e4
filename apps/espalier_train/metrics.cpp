// SPDX-License-Identifier: Apache-2.0
#include "apps/espalier_train/metrics.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "espalier/base/atomic_file.hpp"
#include "espalier/base/check.hpp"
#include "espalier/base/read_file.hpp"

namespace espalier::command {
namespace {

constexpr std::string_view kHeader =
    "step,loss,grad_norm,lr,tokens_per_s,averaging_bytes,averaging_fp32_bytes,averaging_share,skipped,val_loss,"
    "val_perplexity\n";

// fmt writes the shortest text that reads back as the same double.
std::string format(const MetricsRow& row) {
  const std::string validation = row.val_loss ? fmt::format("{},{}", *row.val_loss, perplexity(*row.val_loss)) : ",";
  return fmt::format("{},{},{},{},{},{},{},{},{:d},{}\n", row.step, row.loss, row.grad_norm, row.lr, row.tokens_per_s,
                     row.averaging_bytes, row.averaging_fp32_bytes, row.averaging_share, row.skipped, validation);
}

// Reads one number and the character after it.
template <typename Number>
bool take(std::string_view& text, Number& value, char after) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data() + text.size() || *end != after) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  return true;
}

// Both numbers of a validation, or neither. The perplexity follows from the loss.
bool take_validation(std::string_view& text, std::optional<double>& loss) {
  if (text == ",\n") {
    text = {};
    return true;
  }
  double perplexity = 0.0;
  return take(text, loss.emplace(), ',') && take(text, perplexity, '\n');
}

// `line` ends with a newline.
bool parse(std::string_view line, MetricsRow& row) {
  int skipped = 0;
  const bool read = take(line, row.step, ',') && take(line, row.loss, ',') && take(line, row.grad_norm, ',') &&
                    take(line, row.lr, ',') && take(line, row.tokens_per_s, ',') &&
                    take(line, row.averaging_bytes, ',') && take(line, row.averaging_fp32_bytes, ',') &&
                    take(line, row.averaging_share, ',') && take(line, skipped, ',') &&
                    take_validation(line, row.val_loss) && line.empty();
  row.skipped = skipped == 1;
  return read && (skipped == 0 || skipped == 1);
}

}  // namespace

MetricsWriter::MetricsWriter(std::string path, std::int64_t next_step) : path_(std::move(path)) {
  std::string kept(kHeader);
  if (next_step > 0 && std::filesystem::exists(path_)) {
    rows_ = read_metrics(path_);
    std::erase_if(rows_, [&](const MetricsRow& row) { return row.step >= next_step; });
    for (const MetricsRow& row : rows_) kept += format(row);
  }
  write_file_atomically(path_, kept);
  fd_ = open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  ESPALIER_CHECK_CONFIG(fd_ >= 0, "{}: cannot open the file: {}", path_, std::system_category().message(errno));
}

MetricsWriter::~MetricsWriter() {
  if (fd_ >= 0) close(fd_);
}

void MetricsWriter::append(const MetricsRow& row) {
  const std::string line = format(row);
  const ssize_t written = write(fd_, line.data(), line.size());
  ESPALIER_CHECK_CONFIG(written == static_cast<ssize_t>(line.size()),
                        "{}: cannot write the row of step {}: {}; expected a disk with room", path_, row.step,
                        std::system_category().message(written < 0 ? errno : ENOSPC));
  rows_.push_back(row);
}

double perplexity(double loss) { return std::exp(loss); }

std::vector<MetricsRow> read_metrics(const std::string& path) {
  const std::string content = read_file(path);
  std::string_view text = content;
  ESPALIER_CHECK_CONFIG(text.starts_with(kHeader), "{}: line 1 is not '{}'; expected a metrics file of an earlier run",
                        path, kHeader.substr(0, kHeader.size() - 1));
  text.remove_prefix(kHeader.size());
  std::vector<MetricsRow> rows;
  for (std::size_t end; (end = text.find('\n')) != std::string_view::npos; text.remove_prefix(end + 1)) {
    MetricsRow row;
    const std::string_view line = text.substr(0, end + 1);
    ESPALIER_CHECK_CONFIG(parse(line, row), "{}: line {} is '{}'; expected a number for each of {}", path,
                          rows.size() + 2, line.substr(0, end), kHeader.substr(0, kHeader.size() - 1));
    rows.push_back(row);
  }
  return rows;
}

}  // namespace espalier::command
