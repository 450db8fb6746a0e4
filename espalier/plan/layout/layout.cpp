// SPDX-License-Identifier: Apache-2.0
// From sizes to two grids: complete the spec (kRest, expert_tensor), check the arithmetic, place
// the axes in the order asked for, check that both grids have the same stages. Every refusal prints
// the factors and the values that would do. The orders are DeepSpeed's
// PipeModelDataParallelTopology and Megatron-core's RankGenerator.
#include "espalier/plan/layout/layout.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include "espalier/base/check.hpp"
#include "espalier/plan/layout/divisors.hpp"

namespace espalier {
namespace {

struct SizeField {
  std::string_view axis;
  std::int64_t LayoutSpec::* size;
};

constexpr std::array<SizeField, 6> kSizeFields{{{"pipe", &LayoutSpec::pipe},
                                                {"data", &LayoutSpec::data},
                                                {"context", &LayoutSpec::context},
                                                {"tensor", &LayoutSpec::tensor},
                                                {"expert", &LayoutSpec::expert},
                                                {"expert_tensor", &LayoutSpec::expert_tensor}}};
constexpr std::span<const SizeField> kDenseFields(kSizeFields.data(), 4);

struct Preset {
  std::string_view name;
  std::string_view order;
};

constexpr std::array<Preset, 4> kPresets{{{"deepspeed", "pipe-data-expert-context-tensor"},
                                          {"megatron", "pipe-data-expert-context-tensor"},
                                          {"deepspeed_data_first", "pipe-expert-data-context-tensor"},
                                          {"megatron_data_slowest", "data-pipe-expert-context-tensor"}}};

using Axes = std::array<std::string_view, 3>;

struct FamilyRow {
  std::string_view name;
  Axes dense;    // what varies in the dense grid
  Axes experts;  // what varies in the expert grid, for the families of the experts
  bool of_experts = false;
};

constexpr std::array<FamilyRow, 11> kFamilies{
    {{"data", {"data"}, {}},
     {"context", {"context"}, {}},
     {"data_context", {"data", "context"}, {}},
     {"tensor", {"tensor"}, {}},
     {"pipe", {"pipe"}, {}},
     {"model", {"pipe", "tensor"}, {}},
     {"stage", {"data", "context", "tensor"}, {}},
     {"expert", {}, {"expert"}, true},
     {"expert_data", {"data", "context"}, {"expert_data"}, true},
     {"expert_tensor", {"tensor"}, {"expert_tensor"}, true},
     {"expert_model", {"pipe", "tensor"}, {"pipe", "expert", "expert_tensor"}, true}}};

constexpr auto kFamilyNames = [] {
  std::array<std::string_view, kFamilies.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kFamilies[i].name;
  return names;
}();

std::size_t family_index(std::string_view name) {
  for (std::size_t i = 0; i < kFamilies.size(); ++i) {
    if (kFamilies[i].name == name) return i;
  }
  throw ConfigError(fmt::format("layout: there is no family of groups '{}'; expected one of {}", name,
                                fmt::join(kFamilyNames, ", ")));
}

// "pipe 2, tensor 4": the dense sizes above 1, without one axis.
std::string sizes_but(const LayoutSpec& spec, std::string_view but, std::string_view separator) {
  std::string text;
  for (const SizeField& field : kDenseFields) {
    if (field.axis == but || spec.*field.size == 1) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : separator, field.axis, spec.*field.size);
  }
  return text;
}

// Product of the dense sizes without one axis; those asked for together may exceed 64 bits.
std::int64_t product_but(const LayoutSpec& spec, std::string_view but) {
  std::int64_t product = 1;
  for (const SizeField& field : kDenseFields) {
    if (field.axis == but) continue;
    ESPALIER_CHECK_CONFIG(!__builtin_mul_overflow(product, spec.*field.size, &product),
                          "layout: {} has more ranks than 64 bits count; expected sizes that multiply to the world",
                          sizes_but(spec, but, " x "));
  }
  return product;
}

// Which values of which single axis would make the sizes fit.
std::string remedies(const LayoutSpec& spec, std::string_view rest, std::int64_t world_size) {
  std::string text;
  for (const SizeField& field : kDenseFields) {
    if (field.axis == rest || (spec.*field.size == 1 && field.axis != "data")) continue;
    LayoutSpec others = spec;
    others.*field.size = 1;
    const std::int64_t product = product_but(others, rest);
    if (world_size % product != 0) continue;
    const std::string with = sizes_but(others, rest, ", ");
    text += fmt::format("; legal {} values{}{}: {}", field.axis, with.empty() ? "" : " for ", with,
                        rest.empty() ? std::to_string(world_size / product) : divisors(world_size / product));
  }
  return text;
}

void check_sizes(const LayoutSpec& spec) {
  std::string_view rest;
  for (const SizeField& field : kSizeFields) {
    const std::int64_t size = spec.*field.size;
    if (size == kRest) {
      ESPALIER_CHECK_CONFIG(rest.empty(), "layout: both {} and {} are to be the rest; at most one axis can be inferred",
                            rest, field.axis);
      rest = field.axis;
    } else if (field.axis != "expert_tensor" || size != 0) {
      ESPALIER_CHECK_CONFIG(size >= 1, "layout: {} is {}; expected at least 1, or the rest of the world", field.axis,
                            size);
    }
  }
}

// Sets the dense axis that is kRest, and checks that the dense sizes multiply to the world.
void complete_dense(LayoutSpec& spec, std::int64_t world_size) {
  for (const SizeField& field : kDenseFields) {
    if (spec.*field.size != kRest) continue;
    const std::int64_t product = product_but(spec, field.axis);
    ESPALIER_CHECK_CONFIG(
        world_size % product == 0, "layout: {} = {} ranks do not divide the world of {}, so nothing is left for {}{}",
        sizes_but(spec, field.axis, " x "), product, world_size, field.axis, remedies(spec, field.axis, world_size));
    spec.*field.size = world_size / product;
  }
  const std::int64_t product = product_but(spec, "");
  const std::string factors = sizes_but(spec, "", " x ");
  ESPALIER_CHECK_CONFIG(product == world_size,
                        "layout: {}{} ranks, but the world has {}{}; or start {} ranks (espalier "
                        "run -n {} -- PROGRAM)",
                        factors.empty() ? "every size is 1: " : factors + " = ", product, world_size,
                        remedies(spec, "", world_size), product, product);
}

// "; legal expert_tensor values for expert 8: 1": what to say instead of a size that was taken from tensor.
std::string instead_of_inherited(const LayoutSpec& wanted, std::int64_t stage) {
  if (wanted.expert_tensor != 0 || wanted.tensor == 1 || wanted.expert < 1 || stage % wanted.expert != 0) return "";
  return fmt::format("; legal expert_tensor values for expert {}: {}", wanted.expert, divisors(stage / wanted.expert));
}

// Sets expert and expert_tensor, and checks that they cut a stage.
void complete_experts(LayoutSpec& spec) {
  const LayoutSpec wanted = spec;
  const std::int64_t stage = spec.data * spec.context * spec.tensor;
  const std::string arithmetic = fmt::format("{} ranks of a stage (data {} x context {} x tensor {})", stage, spec.data,
                                             spec.context, spec.tensor);
  if (spec.expert_tensor == kRest) {
    ESPALIER_CHECK_CONFIG(
        stage % spec.expert == 0,
        "layout: expert {} does not divide the {}, so nothing is left for expert_tensor; legal expert values: {}",
        spec.expert, arithmetic, divisors(stage));
    spec.expert_tensor = stage / spec.expert;
  }
  if (spec.expert_tensor == 0) spec.expert_tensor = spec.tensor;
  ESPALIER_CHECK_CONFIG(stage % spec.expert_tensor == 0,
                        "layout: expert_tensor {} does not divide the {}; legal expert_tensor values: {}",
                        spec.expert_tensor, arithmetic, divisors(stage));
  const std::int64_t left = stage / spec.expert_tensor;
  if (spec.expert == kRest) spec.expert = left;
  ESPALIER_CHECK_CONFIG(
      left % spec.expert == 0,
      "layout: expert {} x expert_tensor {}{} does not divide the {}; legal expert values for expert_tensor {}: {}{}",
      spec.expert, spec.expert_tensor,
      wanted.expert_tensor == 0 && spec.tensor > 1 ? " (as tensor, since it is not given)" : "", arithmetic,
      spec.expert_tensor, divisors(left), instead_of_inherited(wanted, stage));
}

// The names of an order, slowest first, with expert put in; ConfigError unless it names each axis
// once.
std::vector<std::string_view> order_names(std::string_view order) {
  std::string_view spelled = order;
  std::string presets;
  for (const Preset& preset : kPresets) {
    if (order == preset.name) spelled = preset.order;
    presets += fmt::format("{}{}", presets.empty() ? "" : ", ", preset.name);
  }
  std::vector<std::string_view> names;
  for (std::size_t begin = 0; begin <= spelled.size();) {
    const std::size_t end = std::min(spelled.find('-', begin), spelled.size());
    names.push_back(spelled.substr(begin, end - begin));
    begin = end + 1;
  }
  if (std::find(names.begin(), names.end(), "expert") == names.end()) {
    const auto data = std::find(names.begin(), names.end(), "data");
    if (data != names.end()) names.insert(data + 1, "expert");
  }
  std::vector<std::string_view> sorted = names;
  std::sort(sorted.begin(), sorted.end());
  const std::array<std::string_view, 5> all{"context", "data", "expert", "pipe", "tensor"};
  ESPALIER_CHECK_CONFIG(std::equal(sorted.begin(), sorted.end(), all.begin(), all.end()),
                        "layout: the order '{}' does not name pipe, data, context and tensor once "
                        "each; expected these "
                        "(and perhaps expert) joined by '-', slowest first, or one of {}",
                        order, presets);
  return names;
}

void check_expert_axis(std::string_view axis) {
  ESPALIER_CHECK_CONFIG(axis == "expert" || axis == "expert_data" || axis == "expert_tensor",
                        "layout: there is no axis '{}'; expected one of pipe, data, context, "
                        "tensor, expert, expert_data, expert_tensor",
                        axis);
}

}  // namespace

struct Layout::State {
  LayoutSpec wanted;
  std::string order;
  Grid dense;
  Grid experts;
  bool has_experts = false;
  std::array<AxisMask, kFamilies.size()> masks{};

  const Grid& grid(const FamilyRow& row) const { return row.of_experts && has_experts ? experts : dense; }
  std::span<const std::string_view> varying(const FamilyRow& row) const {
    const Axes& axes = row.of_experts && has_experts ? row.experts : row.dense;
    return {axes.begin(), std::find(axes.begin(), axes.end(), std::string_view())};
  }
};

Layout::Layout(const LayoutSpec& wanted, std::int64_t world_size) {
  ESPALIER_CHECK_CONFIG(world_size >= 1, "layout: the world has {} ranks; expected at least 1", world_size);
  LayoutSpec spec = wanted;
  check_sizes(spec);
  const std::vector<std::string_view> names = order_names(spec.order);
  complete_dense(spec, world_size);
  complete_experts(spec);

  const std::int64_t expert_data = world_size / (spec.pipe * spec.expert * spec.expert_tensor);
  std::vector<GridAxis> dense;
  std::vector<GridAxis> experts;
  for (std::string_view name : names) {
    if (name == "pipe") {
      dense.push_back({"pipe", spec.pipe});
      experts.push_back({"pipe", spec.pipe});
    } else if (name == "data") {
      dense.push_back({"data", spec.data});
      experts.push_back({"expert_data", expert_data});
    } else if (name == "context") {
      dense.push_back({"context", spec.context});
    } else if (name == "tensor") {
      dense.push_back({"tensor", spec.tensor});
      experts.push_back({"expert_tensor", spec.expert_tensor});
    } else {
      experts.push_back({"expert", spec.expert});
    }
  }
  auto state = std::make_shared<State>();
  state->wanted = wanted;
  state->order = fmt::format("{}", fmt::join(names, "-"));
  state->dense = Grid(dense);
  state->experts = Grid(experts);
  state->has_experts = spec.expert > 1 || spec.expert_tensor != spec.tensor;
  ESPALIER_CHECK_CONFIG(
      !state->has_experts || spec.pipe == 1 || state->dense.stride("pipe") == state->experts.stride("pipe"),
      "layout: in the order {} the stages of {} are {} ranks apart, but those of "
      "{} are {}; expected the same "
      "stages for both: make pipe the slowest axis, or choose sizes whose "
      "products after pipe agree",
      state->order, state->dense.to_string(), state->dense.stride("pipe"), state->experts.to_string(),
      state->experts.stride("pipe"));
  for (std::size_t i = 0; i < kFamilies.size(); ++i) {
    state->masks[i] = state->grid(kFamilies[i]).mask(state->varying(kFamilies[i]));
  }
  state_ = std::move(state);
}

LayoutSpec Layout::parse(std::string_view text) {
  LayoutSpec spec;
  std::vector<std::string_view> seen;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = text.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t equals = item.find('=');
    ESPALIER_CHECK_CONFIG(equals != std::string_view::npos,
                          "layout: '{}' in '{}' is not of the form axis=size; expected for "
                          "instance data=4,pipe=2,tensor=rest",
                          item, text);
    const std::string_view key = item.substr(0, equals);
    const std::string_view value = item.substr(equals + 1);
    ESPALIER_CHECK_CONFIG(std::find(seen.begin(), seen.end(), key) == seen.end(), "layout: '{}' is given twice in '{}'",
                          key, text);
    seen.push_back(key);
    if (key == "order") {
      order_names(value);
      spec.order = value;
      continue;
    }
    const auto field =
        std::find_if(kSizeFields.begin(), kSizeFields.end(), [&](const SizeField& f) { return f.axis == key; });
    ESPALIER_CHECK_CONFIG(field != kSizeFields.end(),
                          "layout: there is no axis '{}'; expected pipe, data, context, tensor, "
                          "expert, expert_tensor or order",
                          key);
    std::int64_t size = kRest;
    if (value != "rest") {
      const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), size);
      ESPALIER_CHECK_CONFIG(error == std::errc() && stop == value.data() + value.size() && size >= 1,
                            "layout: {} is '{}'; expected a whole number from 1, or rest", key, value);
    }
    spec.*(field->size) = size;
  }
  return spec;
}

std::int64_t Layout::world_size() const { return state_->dense.size(); }

std::int64_t Layout::size(std::string_view axis) const {
  if (state_->dense.has(axis)) return state_->dense.size(axis);
  check_expert_axis(axis);
  return group(axis, 0).size();
}

std::string_view Layout::origin(std::string_view axis) const {
  if (!state_->dense.has(axis)) check_expert_axis(axis);
  for (const SizeField& field : kSizeFields) {
    if (field.axis != axis) continue;
    const std::int64_t wanted = state_->wanted.*field.size;
    if (wanted == kRest) return "rest";
    return wanted == 0 ? "as tensor" : "given";
  }
  return "left";
}

std::int64_t Layout::coordinate(std::string_view axis, std::int64_t rank) const {
  if (state_->dense.has(axis)) return state_->dense.coordinate(axis, rank);
  check_expert_axis(axis);
  return *group(axis, rank).index_of(rank);
}

std::span<const std::string_view> Layout::families() const { return kFamilyNames; }

RankSet Layout::group(std::string_view family, std::int64_t rank) const {
  const std::size_t i = family_index(family);
  return state_->grid(kFamilies[i]).fiber(rank, state_->masks[i]);
}

Family Layout::family(std::string_view name) const {
  const FamilyRow& row = kFamilies[family_index(name)];
  const std::span<const std::string_view> axes = state_->varying(row);
  const std::vector<Varying> varying(axes.begin(), axes.end());
  return state_->grid(row).family(varying);
}

std::vector<std::string> Layout::describe() const {
  std::vector<std::string> lines{fmt::format("world={}", world_size()), "order=" + state_->order};
  for (std::string_view axis : {"pipe", "data", "context", "tensor", "expert", "expert_data", "expert_tensor"}) {
    lines.push_back(fmt::format("{}={}", axis, size(axis)));
  }
  return lines;
}

std::string Layout::to_string() const {
  std::string text;
  for (const SizeField& field : kSizeFields) {
    const std::int64_t value = size(field.axis);
    const bool implied = field.axis == "expert_tensor" ? value == size("tensor") : value == 1;
    if (!implied) text += fmt::format("{}{}={}", text.empty() ? "" : ",", field.axis, value);
  }
  if (text.empty()) text = "data=1";
  if (state_->order != kPresets[0].order) text += ",order=" + state_->order;
  return text;
}

}  // namespace espalier
