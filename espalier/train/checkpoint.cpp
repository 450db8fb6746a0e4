// SPDX-License-Identifier: Apache-2.0
// Order of a save: rank 0 makes step-N.tmp, every rank writes its files there, rank 0 writes the manifest, renames the
// folder, renames a new `latest` over the old one, and only then removes old checkpoints. Each step ends with an
// agreement, so a full disk on one rank is everybody's error and leaves `latest` where it was.
#include "espalier/train/checkpoint.hpp"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "espalier/base/atomic_file.hpp"
#include "espalier/base/check.hpp"
#include "espalier/base/read_file.hpp"
#include "espalier/comm/together.hpp"
#include "espalier/sharding/tensor_file.hpp"

namespace espalier::detail {
namespace {

namespace fs = std::filesystem;

constexpr int kFormatVersion = 1;

std::string step_name(std::int64_t step) { return fmt::format("step-{:08}", step); }

// All checkpoint folders but the newest two, never the one `latest` names.
void remove_old(const fs::path& folder, const std::string& latest) {
  std::vector<fs::path> steps;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && name.starts_with("step-") && name != latest) steps.push_back(entry.path());
  }
  std::ranges::sort(steps, std::greater{});
  for (std::size_t i = 1; i < steps.size(); ++i) fs::remove_all(steps[i]);
}

}  // namespace

void write_checkpoint(const std::string& folder, const CheckpointManifest& manifest,
                      std::span<const CheckpointTensor> held, const Group& world) {
  const fs::path root(folder);
  const std::string name = step_name(manifest.step);
  const fs::path temporary = root / (name + ".tmp");
  const bool first = world.rank() == 0;
  together(world, [&] {
    if (!first) return;
    fs::remove_all(temporary);
    fs::create_directories(temporary);
  });
  together(world, [&] {
    std::map<std::string, std::vector<NamedTensor>> files;
    for (const CheckpointTensor& one : held) {
      if (one.counted) files[one.file].push_back({one.name, one.tensor.detach()});
    }
    for (const auto& [file, tensors] : files) write_tensor_file((temporary / file).string(), tensors);
  });
  together(world, [&] {
    if (!first) return;
    const nlohmann::json json{{"format", "espalier checkpoint"},
                              {"version", kFormatVersion},
                              {"step", manifest.step},
                              {"optimizer_steps", manifest.optimizer_steps},
                              {"num_parameters", manifest.num_parameters},
                              {"replicas", manifest.replicas}};
    write_file_atomically((temporary / "manifest.json").string(), json.dump(2) + "\n");
    fs::remove_all(root / name);  // the same step saved again
    fs::rename(temporary, root / name);
    write_file_atomically((root / "latest").string(), name + "\n");
    remove_old(root, name);
  });
}

std::optional<CheckpointManifest> read_manifest(const std::string& folder, const Group& world) {
  std::string latest;
  CheckpointManifest manifest;
  together(world, [&] {
    const fs::path root(folder);
    if (!fs::exists(root / "latest")) return;
    latest = read_file(root / "latest");
    latest.erase(latest.find_last_not_of(" \n") + 1);
    const fs::path path = root / latest / "manifest.json";
    const auto json = nlohmann::json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
    ESPALIER_CHECK_CONFIG(json.is_object() && json.value("format", "") == "espalier checkpoint",
                          "checkpoint: {} is not the manifest of an espalier checkpoint", path.string());
    ESPALIER_CHECK_CONFIG(json.value("version", 0) == kFormatVersion,
                          "checkpoint: {} has format version {}; this program reads {}", path.string(),
                          json.value("version", 0), kFormatVersion);
    manifest = {json.value("step", std::int64_t{-1}), json.value("optimizer_steps", std::int64_t{-1}),
                json.value("num_parameters", std::int64_t{-1}), json.value("replicas", std::int64_t{0})};
    ESPALIER_CHECK_CONFIG(latest == step_name(manifest.step) && manifest.optimizer_steps >= 0 && manifest.replicas >= 0,
                          "checkpoint: {} is damaged: it says step {} of {} optimizer steps and {} replicas",
                          path.string(), manifest.step, manifest.optimizer_steps, manifest.replicas);
  });
  agree(world, "checkpoint in " + folder, std::vector<std::string>{"latest=" + latest});
  if (latest.empty()) return std::nullopt;
  return manifest;
}

void read_checkpoint(const std::string& folder, const CheckpointManifest& manifest, std::span<CheckpointTensor> wanted,
                     const Group& world) {
  const c10::NoGradGuard no_grad;
  together(world, [&] {
    const fs::path root = fs::path(folder) / step_name(manifest.step);
    std::map<std::string, TensorFile> files;
    for (CheckpointTensor& one : wanted) {
      const std::string path = (root / one.file).string();
      const TensorFile& file = files.try_emplace(one.file, path).first->second;
      const at::Tensor read = file.read(one.name);
      ESPALIER_CHECK_CONFIG(
          read.sizes() == one.tensor.sizes() && read.scalar_type() == one.tensor.scalar_type(),
          "checkpoint: {} in {} is {} [{}], but the model's is {} [{}]; resume with the model it was saved from",
          one.name, path, c10::toString(read.scalar_type()), fmt::join(read.sizes(), ","),
          c10::toString(one.tensor.scalar_type()), fmt::join(one.tensor.sizes(), ","));
      one.tensor.detach().copy_(read);
    }
  });
}

}  // namespace espalier::detail
