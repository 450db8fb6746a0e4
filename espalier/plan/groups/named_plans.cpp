// SPDX-License-Identifier: Apache-2.0
// One row per builder in kPlans: its name, what it takes, and how "key=value" settings become its
// arguments. A builder asks for each of its keys; what nobody asked for is an unknown key.
#include "espalier/plan/groups/named_plans.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>
#include <utility>
#include <vector>

#include "espalier/base/check.hpp"
#include "espalier/plan/groups/expert_data.hpp"
#include "espalier/plan/groups/expert_data_model.hpp"
#include "espalier/plan/groups/inference.hpp"
#include "espalier/plan/groups/megatron.hpp"
#include "espalier/plan/groups/model_data.hpp"
#include "espalier/plan/groups/pipeline_grid.hpp"
#include "espalier/plan/groups/tied.hpp"
#include "espalier/plan/groups/topology.hpp"
#include "espalier/plan/groups/zero.hpp"

namespace espalier {
namespace {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// What was given, and which of it a builder has taken.
class Settings {
 public:
  Settings(std::string_view plan, std::span<const std::string> given) : plan_(plan) {
    for (const std::string& item : given) {
      const std::size_t equals = item.find('=');
      ESPALIER_CHECK_CONFIG(equals != std::string::npos && equals > 0, "plan {}: '{}' is not of the form key=value",
                            plan_, item);
      const std::string key = item.substr(0, equals);
      ESPALIER_CHECK_CONFIG(find(key) == nullptr, "plan {}: '{}' is given twice", plan_, key);
      entries_.push_back({key, item.substr(equals + 1)});
    }
  }

  std::string_view plan() const { return plan_; }

  std::int64_t number(std::string_view key, std::int64_t otherwise) {
    const Entry* entry = take(key);
    return entry == nullptr ? otherwise : to_number(key, entry->value);
  }

  std::vector<std::int64_t> numbers(std::string_view key) {
    std::vector<std::int64_t> result;
    for (const std::string& part : texts(key)) result.push_back(to_number(key, part));
    return result;
  }

  // The parts of a list, which must be there.
  std::vector<std::string> texts(std::string_view key) {
    const Entry* entry = take(key);
    ESPALIER_CHECK_CONFIG(entry != nullptr, "plan {}: {} is missing; expected {}=A,B,...", plan_, key, key);
    return split(entry->value, ',');
  }

  std::string text(std::string_view key, std::string_view otherwise) {
    const Entry* entry = take(key);
    return entry == nullptr ? std::string(otherwise) : entry->value;
  }

  // The first of the choices is the default.
  template <class Value>
  Value choice(std::string_view key, std::initializer_list<std::pair<std::string_view, Value>> choices) {
    const Entry* entry = take(key);
    if (entry == nullptr) return choices.begin()->second;
    std::vector<std::string_view> names;
    for (const auto& [name, value] : choices) {
      if (name == entry->value) return value;
      names.push_back(name);
    }
    throw ConfigError(
        fmt::format("plan {}: {} is '{}'; expected one of {}", plan_, key, entry->value, fmt::join(names, ", ")));
  }

  // All that was not taken yet, as axes.
  std::vector<GridAxis> axes() {
    std::vector<GridAxis> result;
    for (Entry& entry : entries_) {
      if (entry.taken) continue;
      entry.taken = true;
      result.push_back({entry.key, to_number(entry.key, entry.value)});
    }
    return result;
  }

  void refuse_what_is_left(std::string_view legal) const {
    for (const Entry& entry : entries_) {
      ESPALIER_CHECK_CONFIG(entry.taken, "plan {}: there is no '{}'; it takes {}", plan_, entry.key, legal);
    }
  }

 private:
  struct Entry {
    std::string key;
    std::string value;
    bool taken = false;
  };

  Entry* find(std::string_view key) {
    const auto entry =
        std::find_if(entries_.begin(), entries_.end(), [&](const Entry& each) { return each.key == key; });
    return entry == entries_.end() ? nullptr : &*entry;
  }

  const Entry* take(std::string_view key) {
    Entry* entry = find(key);
    if (entry != nullptr) entry->taken = true;
    return entry;
  }

  std::int64_t to_number(std::string_view key, std::string_view text) const {
    std::int64_t number = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    ESPALIER_CHECK_CONFIG(error == std::errc() && stop == text.data() + text.size(),
                          "plan {}: {} is '{}'; expected a whole number", plan_, key, text);
    return number;
  }

  std::string_view plan_;
  std::vector<Entry> entries_;
};

ExpertOrder expert_order(Settings& settings) {
  return settings.choice<ExpertOrder>(
      "order", {{"expert_first", ExpertOrder::expert_first}, {"data_first", ExpertOrder::data_first}});
}

GroupPlan model_data(std::int64_t world_size, Settings& settings) {
  return model_data_plan(world_size, settings.number("model", 1));
}

GroupPlan expert_data(std::int64_t world_size, Settings& settings) {
  return expert_data_plan(
      world_size, {.expert = settings.number("expert", 1),
                   .pipe = settings.number("pipe", 1),
                   .order = expert_order(settings),
                   .variant = settings.choice<ExpertDataVariant>("variant", {{"v0.16", ExpertDataVariant::v0_16},
                                                                             {"v0.19", ExpertDataVariant::v0_19},
                                                                             {"seed", ExpertDataVariant::seed}}),
                   .model = settings.number("model", 1),
                   .lanes = settings.choice<ModelLanes>("lanes", {{"tensor", ModelLanes::tensor},
                                                                  {"sequence", ModelLanes::sequence},
                                                                  {"folded", ModelLanes::folded}})});
}

GroupPlan expert_data_model(std::int64_t world_size, Settings& settings) {
  const Layout layout({.pipe = settings.number("pipe", 1), .data = kRest, .tensor = settings.number("tensor", 1)},
                      world_size);
  return expert_data_model_plan(layout, {.expert = settings.number("expert", 1),
                                         .order = expert_order(settings),
                                         .expert_tensor = settings.number("expert_tensor", 0)});
}

GroupPlan inference_expert(std::int64_t world_size, Settings& settings) {
  return inference_expert_plan(world_size, settings.numbers("sizes"));
}

GroupPlan inference_model(std::int64_t world_size, Settings& settings) {
  return inference_model_plan(world_size, settings.numbers("sizes"));
}

ProcessTopology topology_of(std::int64_t world_size, Settings& settings) {
  const std::vector<GridAxis> axes = settings.axes();
  if (axes.empty()) return ProcessTopology::pipe_data_of(world_size);
  std::vector<std::string> names;
  std::vector<std::int64_t> sizes;
  for (const GridAxis& axis : axes) {
    names.push_back(axis.name);
    sizes.push_back(axis.size);
  }
  const ProcessTopology topology(names, sizes);
  ESPALIER_CHECK_CONFIG(topology.world_size() == world_size,
                        "plan {}: {} = {} ranks, but the world has {}; expected axes whose sizes multiply to it",
                        settings.plan(), topology.grid().to_string(), topology.world_size(), world_size);
  return topology;
}

GroupPlan topology(std::int64_t world_size, Settings& settings) {
  const ProcessTopology topology = topology_of(world_size, settings);
  GroupPlan plan(world_size);
  for (const GridAxis& axis : topology.grid().axes()) plan.add(axis.name, topology.grid().family({Varying(axis.name)}));
  return plan;
}

GroupPlan pipeline_grid(std::int64_t world_size, Settings& settings) {
  return PipelineGrid(topology_of(world_size, settings)).plan();
}

GroupPlan pipeline_pairs(std::int64_t world_size, Settings& settings) {
  return PipelineGrid(topology_of(world_size, settings)).pair_plan();
}

GroupPlan tied(std::int64_t world_size, Settings& settings) {
  std::vector<std::string> layers = settings.texts("layers");
  std::replace(layers.begin(), layers.end(), std::string("-"), std::string());
  const std::vector<std::int64_t> cuts = settings.numbers("cuts");
  return tied_plan(topology_of(world_size, settings), layers, cuts).groups();
}

GroupPlan parameter_parallel(std::int64_t world_size, Settings& settings) {
  return parameter_parallel_plan(world_size, settings.number("size", world_size));
}

GroupPlan secondary_shard(std::int64_t world_size, Settings& settings) {
  return secondary_shard_plan(world_size, settings.number("size", 1));
}

GroupPlan local_global(std::int64_t world_size, Settings& settings) {
  return local_global_plan(world_size, settings.number("devices_per_node", 1));
}

GroupPlan mics(std::int64_t world_size, Settings& settings) {
  return mics_plan(world_size, {.shard = settings.number("shard", 1),
                                .devices_per_node = settings.number("devices_per_node", 1),
                                .hierarchical = settings.choice<bool>("hierarchical", {{"no", false}, {"yes", true}})});
}

MegatronRanks megatron_ranks(std::int64_t world_size, Settings& settings) {
  const MegatronSpec defaults;
  const MegatronRanks ranks({.tp = settings.number("tp", 1),
                             .ep = settings.number("ep", 1),
                             .dp = settings.number("dp", 1),
                             .pp = settings.number("pp", 1),
                             .cp = settings.number("cp", 1),
                             .order = settings.text("order", defaults.order),
                             .rank_offset = settings.number("rank_offset", 0)});
  const Grid& grid = ranks.grid();
  ESPALIER_CHECK_CONFIG(grid.offset() + grid.size() == world_size,
                        "plan {}: {} = {} ranks from rank {} on, but the world has {}; expected "
                        "sizes that multiply to {}",
                        settings.plan(), grid.to_string(), grid.size(), grid.offset(), world_size,
                        world_size - grid.offset());
  return ranks;
}

GroupPlan megatron(std::int64_t world_size, Settings& settings) {
  const std::vector<std::string> families = split(settings.text("families", "tp,cp,ep,dp,pp"), ',');
  const MegatronRanks ranks = megatron_ranks(world_size, settings);
  GroupPlan plan(world_size);
  for (const std::string& token : families) plan.add(token, ranks.family(token));
  return plan;
}

GroupPlan megatron_embedding(std::int64_t world_size, Settings& settings) {
  return megatron_ranks(world_size, settings).embedding_plan();
}

GroupPlan ep_folding(std::int64_t world_size, Settings& settings) {
  return ep_folding_plan(world_size, {.pp = settings.number("pp", 1),
                                      .tp = settings.number("tp", 1),
                                      .ep = settings.number("ep", 1),
                                      .etp = settings.number("etp", 1)});
}

GroupPlan layout(std::int64_t world_size, Settings& settings) {
  std::string text = "order=" + settings.text("order", LayoutSpec().order);
  for (std::string_view axis : {"pipe", "data", "context", "tensor", "expert", "expert_tensor"}) {
    const std::string size = settings.text(axis, "");
    if (!size.empty()) text += fmt::format(",{}={}", axis, size);
  }
  return layout_plan(Layout(Layout::parse(text), world_size));
}

struct Row {
  NamedPlan plan;
  GroupPlan (*build)(std::int64_t world_size, Settings& settings);
};

constexpr std::array<Row, 17> kRows{{
    {{"layout", "pipe=1 data=1 context=1 tensor=1 expert=1 expert_tensor=tensor order=deepspeed"}, layout},
    {{"model_data", "model=1"}, model_data},
    {{"expert_data",
      "expert=1 pipe=1 order=expert_first|data_first variant=v0.16|v0.19|seed model=1 "
      "lanes=tensor|sequence|folded"},
     expert_data},
    {{"expert_data_model", "pipe=1 tensor=1 expert=1 expert_tensor=tensor order=expert_first|data_first"},
     expert_data_model},
    {{"inference_expert", "sizes=A,B,..."}, inference_expert},
    {{"inference_model", "sizes=A,B,..."}, inference_model},
    {{"topology", "AXIS=SIZE..."}, topology},
    {{"pipeline_grid", "pipe=P data=D AXIS=SIZE..."}, pipeline_grid},
    {{"pipeline_pairs", "pipe=P data=D AXIS=SIZE..."}, pipeline_pairs},
    {{"tied", "layers=KEY,-,... cuts=0,... pipe=P AXIS=SIZE..."}, tied},
    {{"parameter_parallel", "size=WORLD"}, parameter_parallel},
    {{"secondary_shard", "size=1"}, secondary_shard},
    {{"local_global", "devices_per_node=1"}, local_global},
    {{"mics", "shard=1 devices_per_node=1 hierarchical=no|yes"}, mics},
    {{"megatron", "tp=1 cp=1 ep=1 dp=1 pp=1 order=tp-cp-ep-dp-pp rank_offset=0 families=tp,cp,ep,dp,pp"}, megatron},
    {{"megatron_embedding", "tp=1 cp=1 ep=1 dp=1 pp=1 order=tp-cp-ep-dp-pp rank_offset=0"}, megatron_embedding},
    {{"ep_folding", "pp=1 tp=1 ep=1 etp=1"}, ep_folding},
}};

constexpr auto kPlans = [] {
  std::array<NamedPlan, kRows.size()> plans;
  for (std::size_t i = 0; i < plans.size(); ++i) plans[i] = kRows[i].plan;
  return plans;
}();

}  // namespace

std::span<const NamedPlan> named_plans() { return kPlans; }

GroupPlan plan_by_name(std::string_view name, std::int64_t world_size, std::span<const std::string> given) {
  ESPALIER_CHECK_CONFIG(world_size >= 1, "plan {}: the world has {} ranks; expected at least 1", name, world_size);
  const auto row = std::find_if(kRows.begin(), kRows.end(), [&](const Row& each) { return each.plan.name == name; });
  if (row == kRows.end()) {
    std::vector<std::string_view> names;
    for (const NamedPlan& plan : kPlans) names.push_back(plan.name);
    throw ConfigError(fmt::format("plan: there is no '{}'; there are {}", name, fmt::join(names, ", ")));
  }
  Settings settings(name, given);
  GroupPlan plan = row->build(world_size, settings);
  settings.refuse_what_is_left(row->plan.settings);
  return plan;
}

GroupPlan layout_plan(const Layout& layout) {
  GroupPlan plan(layout.world_size());
  for (std::string_view family : layout.families()) plan.add(family, layout.family(family));
  return plan;
}

}  // namespace espalier
