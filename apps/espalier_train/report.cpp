// SPDX-License-Identifier: Apache-2.0
// The page, section by section. A section without data is left out.
#include "apps/espalier_train/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <span>
#include <string_view>

#include "apps/espalier_train/html_text.hpp"
#include "apps/espalier_train/line_chart.hpp"
#include "apps/espalier_train/report_style.hpp"

namespace espalier::command {
namespace {

constexpr std::size_t kSmoothSteps = 20;

std::vector<double> column(const std::vector<MetricsRow>& rows, double MetricsRow::* field) {
  std::vector<double> values;
  for (const MetricsRow& row : rows) values.push_back(row.*field);
  return values;
}

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Mean of the kSmoothSteps values around each; of those there are, at the ends.
std::vector<double> smoothed(std::span<const double> values) {
  std::vector<double> means;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t first = i > kSmoothSteps / 2 ? i - kSmoothSteps / 2 : 0;
    means.push_back(mean(values.subspan(first, std::min(i + kSmoothSteps / 2, values.size()) - first)));
  }
  return means;
}

// The run's result: mean of the last kSmoothSteps losses.
double final_loss(const std::vector<MetricsRow>& rows) {
  const auto losses = column(rows, &MetricsRow::loss);
  return mean(std::span(losses).last(std::min(losses.size(), kSmoothSteps)));
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

std::string duration(double seconds) {
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

// The rows that have a validation loss.
std::vector<MetricsRow> validated(const std::vector<MetricsRow>& rows) {
  std::vector<MetricsRow> found;
  std::ranges::copy_if(rows, std::back_inserter(found), [](const MetricsRow& row) { return row.val_loss.has_value(); });
  return found;
}

std::string layout_text(const Report& report) {
  std::string text;
  for (const auto& [name, size] : report.axes) text += fmt::format("{}{}={}", text.empty() ? "" : ", ", name, size);
  return text;
}

std::string tile(std::string_view name, std::string_view value, std::string_view note = "") {
  return fmt::format("<div><dt>{}</dt><dd>{} <small>{}</small></dd></div>\n", name, value, escape_html(note));
}

std::string tiles(const Report& report) {
  std::string html = "<dl class=\"tiles\">\n";
  if (!report.metrics.empty()) {
    html += tile("Loss", fmt::format("{:.3f}", final_loss(report.metrics)),
                 fmt::format("from {:.3f}", report.metrics.front().loss));
    if (const auto rows = validated(report.metrics); !rows.empty()) {
      const MetricsRow& best = *std::ranges::min_element(rows, {}, [](const MetricsRow& row) { return *row.val_loss; });
      html += tile("Validation loss", fmt::format("{:.3f}", *rows.back().val_loss),
                   fmt::format("perplexity {:.4g}, best {:.3f} after step {}", perplexity(*rows.back().val_loss),
                               *best.val_loss, best.step + 1));
    }
    html += tile("Tokens per second", grouped(std::llround(median(column(report.metrics, &MetricsRow::tokens_per_s)))),
                 "median");
    const auto skipped = std::ranges::count_if(report.metrics, &MetricsRow::skipped);
    html += tile("Steps", grouped(report.metrics.back().step + 1),
                 fmt::format("in {}{}", duration(report.total_seconds),
                             skipped == 0 ? "" : fmt::format(", {} skipped", grouped(skipped))));
  }
  if (!report.places.empty())
    html += tile("Ranks", grouped(static_cast<std::int64_t>(report.places.size())), layout_text(report));
  return html + "</dl>\n";
}

// The same numbers in words, for those who cannot see the curves: about ten steps.
std::string steps_table(const std::vector<MetricsRow>& rows, const std::vector<double>& smooth) {
  std::string html =
      "<details><summary>As numbers</summary><div class=\"wide\"><table><thead><tr><th "
      "scope=\"col\">Step</th><th scope=\"col\">Loss</th>"
      "<th scope=\"col\">Smoothed</th><th scope=\"col\">Gradient norm</th><th "
      "scope=\"col\">Learning rate</th>"
      "<th scope=\"col\">Tokens/s</th><th scope=\"col\">Skipped</th><th scope=\"col\">Validation loss, last</th>"
      "</tr></thead><tbody>\n";
  const std::size_t stride = std::max<std::size_t>(1, (rows.size() + 9) / 10);
  const auto last_validation = [&](std::size_t i) {
    while (i > 0 && !rows[i].val_loss) --i;
    return rows[i].val_loss ? fmt::format("{:.4f}", *rows[i].val_loss) : "";
  };
  const auto add = [&](std::size_t i) {
    html += fmt::format(
        "<tr><th "
        "scope=\"row\">{}</th><td>{:.4f}</td><td>{:.4f}</td><td>{:.4f}</td><td>{:.3g}</"
        "td><td>{:.0f}</td><td>{}</td><td>{}</td></tr>\n",
        rows[i].step, rows[i].loss, smooth[i], rows[i].grad_norm, rows[i].lr, rows[i].tokens_per_s,
        rows[i].skipped ? "yes" : "", last_validation(i));
  };
  for (std::size_t i = 0; i + 1 < rows.size(); i += stride) add(i);
  add(rows.size() - 1);
  return html + "</tbody></table></div></details>\n";
}

std::string curves(const Report& report) {
  const auto& rows = report.metrics;
  if (rows.empty()) return "<section><h2>Loss</h2><p>No steps were recorded.</p></section>\n";
  std::vector<double> steps;
  for (const MetricsRow& row : rows) steps.push_back(static_cast<double>(row.step));
  const auto loss = column(rows, &MetricsRow::loss);
  const auto smooth = smoothed(loss);
  std::vector<Curve> loss_curves{{"each step", "raw", loss}, {"mean", "smooth", smooth}};
  Curve validation{"validation", "validation", {}};
  for (const MetricsRow& row : validated(rows)) {
    validation.x.push_back(static_cast<double>(row.step));
    validation.y.push_back(*row.val_loss);
  }
  const bool has_validation = !validation.y.empty();
  if (has_validation) loss_curves.push_back(validation);

  std::string html = fmt::format(
      "<section><h2>Loss</h2>\n<p class=\"legend\"><span class=\"raw\">each step</span><span "
      "class=\"smooth\">mean of {} "
      "steps</span>{}</p>\n{}{}</section>\n",
      kSmoothSteps, has_validation ? "<span class=\"validation\">validation</span>" : "",
      line_chart_svg({.title = fmt::format("Loss over steps: from {:.3f} to {:.3f} (mean of {} steps)", loss.front(),
                                           final_loss(rows), kSmoothSteps),
                      .x_label = "step",
                      .x = steps,
                      .curves = loss_curves,
                      .width = 900,
                      .height = 320}),
      steps_table(rows, smooth));
  html += "<div class=\"three\">\n";
  struct Small {
    std::string_view title;
    std::string_view style;
    double MetricsRow::* field;
  };
  for (const auto& [title, style, field] :
       {Small{"Gradient norm", "norm", &MetricsRow::grad_norm}, Small{"Learning rate", "rate", &MetricsRow::lr},
        Small{"Tokens per second", "speed", &MetricsRow::tokens_per_s}}) {
    const auto values = column(rows, field);
    html += fmt::format("<section><h2>{}</h2>\n{}</section>\n", title,
                        line_chart_svg({.title = fmt::format("{} over steps: from {:.4g} to {:.4g}", title,
                                                             values.front(), values.back()),
                                        .x_label = "step",
                                        .x = steps,
                                        .curves = {{std::string(title), std::string(style), values}},
                                        .width = 300,
                                        .height = 200}));
  }
  return html + "</div>\n";
}

// Rows of equal steps: those before a freeze, those after it, skipped ones.
struct AveragingRow {
  std::int64_t first_step = 0;
  std::int64_t steps = 0;
  std::int64_t bytes = 0;  // of all its steps, as the next
  std::int64_t fp32_bytes = 0;
  std::vector<double> shares = {};
};

std::string averaging_row(std::string_view name, const AveragingRow& row) {
  return fmt::format(
      "<tr><th scope=\"row\">{}</th><td class=\"number\">{}</td><td class=\"number\">{}</td><td "
      "class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{:.1f} %</td></tr>\n",
      name, grouped(row.steps), grouped(row.bytes), grouped(row.fp32_bytes),
      row.bytes == 0 ? "none"
                     : fmt::format("{:.1f}", static_cast<double>(row.fp32_bytes) / static_cast<double>(row.bytes)),
      100.0 * median(row.shares));
}

// What averaging over data cost; nothing where there is one data rank.
std::string averaging(const Report& report) {
  std::vector<AveragingRow> rows;
  AveragingRow all;
  for (const MetricsRow& step : report.metrics) {
    const auto same = [&](const AveragingRow& row) {
      return row.bytes == row.steps * step.averaging_bytes && row.fp32_bytes == row.steps * step.averaging_fp32_bytes;
    };
    auto row = std::ranges::find_if(rows, same);
    if (row == rows.end()) row = rows.insert(row, AveragingRow{.first_step = step.step});
    for (AveragingRow* one : {&*row, &all}) {
      ++one->steps;
      one->bytes += step.averaging_bytes;
      one->fp32_bytes += step.averaging_fp32_bytes;
      one->shares.push_back(step.averaging_share);
    }
  }
  if (all.fp32_bytes == 0) return "";
  std::string html =
      "<section><h2>Averaging over data</h2>\n<div class=\"wide\"><table><caption>What rank 0 sent "
      "for gradients or momentum, in bytes, against a ring all-reduce in fp32</caption><thead><tr><th "
      "scope=\"col\">Steps</th><th scope=\"col\" class=\"number\">Number</th><th scope=\"col\" "
      "class=\"number\">Sent</th><th scope=\"col\" class=\"number\">In fp32</th><th scope=\"col\" "
      "class=\"number\">Ratio</th><th scope=\"col\" class=\"number\">Share of time, "
      "median</th></tr></thead><tbody>\n";
  for (const AveragingRow& row : rows) html += averaging_row(fmt::format("from step {}", row.first_step), row);
  if (rows.size() > 1) html += averaging_row("all", all);
  return html + "</tbody></table></div></section>\n";
}

// Stages down, data ranks across; several ranks share a place when other axes are larger than 1.
std::string rank_map(const Report& report) {
  std::map<std::int64_t, std::map<std::int64_t, std::string>> ranks;
  std::int64_t num_data = 0;
  for (const auto& [rank, stage, data_rank] : report.places) {
    std::string& cell = ranks[stage][data_rank];
    cell += fmt::format("{}{}", cell.empty() ? "" : ", ", rank);
    num_data = std::max(num_data, data_rank + 1);
  }
  std::string html =
      "<div class=\"wide\"><table class=\"map\"><caption>Ranks by stage and data "
      "rank</caption><thead><tr><td></td>";
  for (std::int64_t d = 0; d < num_data; ++d) html += fmt::format("<th scope=\"col\">data {}</th>", d);
  html += "</tr></thead><tbody>\n";
  for (auto& [stage, cells] : ranks) {
    html += fmt::format("<tr><th scope=\"row\">stage {}</th>", stage);
    for (std::int64_t d = 0; d < num_data; ++d) html += fmt::format("<td>{}</td>", cells[d]);
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string stage_table(const Report& report) {
  std::int64_t largest = 1;
  for (const auto& stage : report.stages) largest = std::max(largest, stage.num_parameters);
  std::string html =
      "<div class=\"wide\"><table><caption>What each stage holds</caption><thead><tr><th "
      "scope=\"col\">Stage</th><th scope=\"col\">Layers</th>"
      "<th scope=\"col\" class=\"number\">Parameters</th><td></td></tr></thead><tbody>\n";
  for (std::size_t s = 0; s < report.stages.size(); ++s) {
    const auto& [layers, num_parameters] = report.stages[s];
    html += fmt::format(
        "<tr><th scope=\"row\">{}</th><td>{}</td><td class=\"number\">{}</td><td "
        "class=\"bar\"><span class=\"share\" style=\"width:{:.1f}%\">"
        "</span></td></tr>\n",
        s, escape_html(layers), grouped(num_parameters),
        100.0 * static_cast<double>(num_parameters) / static_cast<double>(largest));
  }
  return html + "</tbody></table></div>\n";
}

std::string layout(const Report& report) {
  if (report.axes.empty()) return "";
  return fmt::format("<section><h2>Layout: {}</h2>\n{}{}</section>\n", escape_html(layout_text(report)),
                     report.places.empty() ? "" : rank_map(report), report.stages.empty() ? "" : stage_table(report));
}

// An <svg> element of a file of its own, as a part of a page: the name space goes without saying
// there.
std::string schedule(const Report& report) {
  std::string svg = report.schedule_svg;
  const std::size_t begin = svg.find("<svg");
  if (begin == std::string::npos) return "";
  svg.erase(0, begin);
  constexpr std::string_view kNamespace = " xmlns=\"http://www.w3.org/2000/svg\"";
  if (const std::size_t at = svg.find(kNamespace); at != std::string::npos) svg.erase(at, kNamespace.size());
  return fmt::format("<section><h2>Schedule: {}</h2>\n<div class=\"picture\">{}</div></section>\n",
                     escape_html(report.schedule_name), svg);
}

std::string sample(const Report& report) {
  if (report.prompt.empty() && report.sample.empty()) return "";
  return fmt::format("<section><h2>What it writes</h2>\n<pre><b>{}</b>{}</pre></section>\n", escape_html(report.prompt),
                     escape_html(report.sample));
}

std::string settings(const Report& report) {
  if (report.settings.empty()) return "";
  std::string html = "<section><h2>Settings</h2>\n<dl class=\"settings\">\n";
  for (const auto& [name, value] : report.settings)
    html += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", escape_html(name), escape_html(value));
  return html + "</dl></section>\n";
}

}  // namespace

std::string render_report(const Report& report) {
  return fmt::format(
             "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><meta "
             "name=\"viewport\" content=\"width=device-width, "
             "initial-scale=1\"/>\n<title>{0}</title>\n<style>{1}</style></"
             "head>\n<body><main>\n<h1>{0}</h1>\n<p class=\"lead\">{2}</p>\n",
             escape_html(report.title), kReportStyle,
             escape_html(report.axes.empty()
                             ? report.made_with
                             : fmt::format("Trained over {} with {}", layout_text(report), report.made_with))) +
         tiles(report) + curves(report) + averaging(report) + layout(report) + schedule(report) + sample(report) +
         settings(report) +
         "<footer>Every row of the curves is in metrics.csv beside this "
         "file.</footer>\n</main></body></html>\n";
}

}  // namespace espalier::command
