// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace espalier::command {

// The page's style sheet. Colours are named once for each scheme; text on its ground has a contrast of at least 4.5 :
// 1.
inline constexpr std::string_view kReportStyle = R"(
:root { color-scheme: light dark; --ground: #f6f7f4; --card: #ffffff; --ink: #1c2420; --soft: #5a665f; --line: #dfe4df;
  --leaf: #1f7a4d; --leaf-soft: #8fc3a8; --sky: #2563a8; --clay: #a8501f; --tint: #e8f2ec; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #121613; --card: #1a201c; --ink: #e6ebe7; --soft: #9aa8a0; --line: #2e3832;
    --leaf: #5cc48d; --leaf-soft: #3a6b52; --sky: #7db4f0; --clay: #e8975f; --tint: #22332a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2.5rem 1.25rem 3rem; }
h1 { font-size: 1.9rem; line-height: 1.2; letter-spacing: -0.015em; margin: 0 0 0.3rem; }
h2 { font-size: 1.05rem; margin: 0 0 0.75rem; }
.lead { color: var(--soft); margin: 0 0 1.75rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); gap: 0.9rem; margin: 0 0 0.9rem; padding: 0; }
.tiles div, section { background: var(--card); border: 1px solid var(--line); border-radius: 0.75rem; }
.tiles div { padding: 0.8rem 1rem; }
.tiles dt { color: var(--soft); font-size: 0.82rem; }
.tiles dd { margin: 0; font-size: 1.5rem; font-weight: 650; letter-spacing: -0.01em; font-variant-numeric: tabular-nums; }
.tiles small { color: var(--soft); font-size: 0.82rem; font-weight: 400; letter-spacing: 0; }
section { padding: 1.1rem 1.25rem 1.25rem; margin: 0 0 0.9rem; min-width: 0; }
.three { display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); gap: 0 0.9rem; }
.legend { display: flex; gap: 1.25rem; color: var(--soft); font-size: 0.85rem; margin: 0 0 0.4rem; }
.legend span::before { content: ""; display: inline-block; width: 1.4em; border-top: 3px solid; margin: 0 0.5em 0.25em 0; }
.legend .raw::before { border-color: var(--leaf-soft); }
.legend .smooth::before { border-color: var(--leaf); }
.legend .validation::before { border-color: var(--clay); }
svg.chart { display: block; width: 100%; height: auto; overflow: visible; }
.chart text { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums; }
.chart .end { text-anchor: end; }
.chart .middle { text-anchor: middle; }
.chart .grid { stroke: var(--line); fill: none; }
.chart .axis { stroke: var(--soft); fill: none; }
.curve { fill: none; stroke-linejoin: round; stroke-width: 1.5; }
.curve.raw { stroke: var(--leaf-soft); stroke-width: 1.2; }
.curve.smooth { stroke: var(--leaf); stroke-width: 2.4; }
.curve.validation { stroke: var(--clay); stroke-width: 2; stroke-linecap: round; }
.curve.norm { stroke: var(--clay); }
.curve.rate { stroke: var(--sky); stroke-width: 2; }
.curve.speed { stroke: var(--leaf); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.92rem; }
caption { text-align: left; color: var(--soft); font-size: 0.85rem; padding: 0 0 0.4rem; }
th, td { padding: 0.35rem 0.9rem 0.35rem 0; text-align: left; border-top: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; }
thead th { color: var(--soft); font-weight: 500; }
thead th, thead td { border-top: 0; }
.number { text-align: right; }
.map { margin-bottom: 1.25rem; border-spacing: 4px; border-collapse: separate; }
.map th, .map td { border: 0; padding: 0.4rem 0.8rem; text-align: center; }
.map thead td { background: none; }
.map tbody th { text-align: left; padding-left: 0; }
.map td { background: var(--tint); border-radius: 0.4rem; min-width: 4.5rem; }
.share { display: block; height: 0.5rem; margin-top: 0.45rem; border-radius: 0.25rem; background: var(--leaf); }
.bar { width: 9rem; }
.picture { background: #ffffff; color: #1c2420; border-radius: 0.5rem; padding: 0.75rem; overflow-x: auto; }
.picture svg { max-width: 100%; height: auto; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; font: 0.88rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
pre b { color: var(--leaf); }
.settings { columns: 18rem 2; column-gap: 2.5rem; margin: 0; font-size: 0.92rem; }
.settings div { display: flex; justify-content: space-between; gap: 1rem; break-inside: avoid; border-top: 1px solid var(--line); padding: 0.3rem 0; }
.settings dt { color: var(--soft); }
.settings dd { margin: 0; text-align: right; overflow-wrap: anywhere; min-width: 0; }
details { margin-top: 0.75rem; }
summary { cursor: pointer; color: var(--soft); font-size: 0.88rem; }
footer { color: var(--soft); font-size: 0.85rem; margin-top: 1.5rem; }
@media print { section, .tiles div { break-inside: avoid; } }
)";

}  // namespace espalier::command
