// Every node and GPU, with who is there and how much it does.

import { h } from "../dom.js";
import { change } from "../api.js";
import { hueOf } from "../colours.js";
import { counted, factor, isKnown, memory, number, percent, ranges, units, watts } from "../format.js";
import { badge, bar, button, chip, empty, ending, isSilent, leaseBadge, since } from "../parts.js";

export const title = "Cluster";
export const path = () => "overview";
export const carriesSummary = true;

const MANY_NODES = 16;

export function render(data, page) {
  if (!data.nodes.length) {
    return empty("No GPU workers registered", "Start a scheduler with the executor on a machine with GPUs, or simulated nodes.");
  }
  const compact = data.nodes.length > MANY_NODES;
  return [
    h("div", { class: "pools" }, data.pools.map((pool) => poolCard(pool))),
    h("div", { class: compact ? "nodes compact" : "nodes" }, data.nodes.map((node) => nodeCard(node, data, page, compact))),
  ];
}

function poolCard(pool) {
  const used = Number(pool.gpus_used);
  const total = Number(pool.gpus);
  return h(
    "section",
    { class: "pool", key: pool.pool, "aria-label": `GPU pool ${pool.pool}` },
    h("div", { class: "row" }, h("h2", null, pool.pool), badge(pool.mode), h("span", { class: "fine" }, `${pool.policy}, ${pool.ordering}`)),
    bar(used, total, "wide"),
    h("p", { class: "fine" }, `${used} of ${counted(total, "GPU")} in use, ${pool.gpus_shared} shared; ${pool.running} running, ${pool.waiting} waiting${pool.on_hold === "0" ? "" : `, ${pool.on_hold} on hold`}`),
  );
}

const STATE_KINDS = { available: "good", draining: "warn", asleep: "plain", waking: "warn", unavailable: "bad" };

function nodeCard(node, data, page, compact) {
  const there = new Map();
  for (const gpu of node.gpus) {
    for (const jobId of gpu.residents) {
      if (!there.has(jobId)) there.set(jobId, []);
      there.get(jobId).push(gpu.index);
    }
  }
  const models = [...new Set(node.gpus.map((gpu) => gpu.model))].join(", ");
  return h(
    "section",
    { class: `node ${node.state}`, key: node.name, "aria-label": `Node ${node.name}` },
    h(
      "header",
      null,
      h("h2", { title: node.name }, ending(node.name)),
      compact && node.state === "available" ? null : badge(node.state, STATE_KINDS[node.state]),
      compact || node.time_scale === 1 ? null : badge("simulated"),
      h("span", { class: "power" }, isKnown(node.power_w) ? watts(node.power_w) : compact ? "? W" : "watts unknown"),
    ),
    h(
      "div",
      { class: "node-facts fine" },
      h("span", null, `${node.gpus.length} × ${models || "unknown"}`, node.last_report_s === null ? null : [" · reported ", since(node.last_report_s), " ago"]),
      data.may_steer ? drainButton(node, page) : null,
    ),
    h("ul", { class: "gpus" }, node.gpus.map((gpu) => tile(gpu, node, data))),
    h(
      "ul",
      { class: "residents" },
      [...there].map(([jobId, indices]) => resident(jobId, indices, data.residents[jobId])),
    ),
  );
}

function drainButton(node, page) {
  const draining = node.state === "draining";
  const verb = draining ? "undrain" : "drain";
  return button(
    draining ? "End drain" : "Drain",
    () => page.act(() => change("POST", `nodes/${encodeURIComponent(node.name)}/${verb}`), `${node.name}: ${draining ? "takes new work again" : "draining, nothing new starts there"}`),
    { class: "quiet", "aria-label": `${draining ? "End drain of" : "Drain"} ${node.name}` },
  );
}

function tile(gpu, node, data) {
  const silent = isSilent(node.state);
  const health = silent ? "unknown" : gpu.health;
  const names = gpu.residents.map((jobId) => data.residents[jobId]?.label || "a task");
  const told = [
    `GPU ${gpu.index}`,
    health === "healthy" ? null : health,
    `utilisation ${percent(gpu.utilisation_pct)}`,
    `memory ${memory(gpu.memory_used_mib)} of ${memory(gpu.memory_total_mib)}`,
    `power ${watts(gpu.power_w)}`,
    names.length ? names.join(" and ") : "nobody",
    ["none", "unknown"].includes(gpu.foreign) ? null : `somebody else has ${gpu.foreign}`,
  ].filter(Boolean).join(", ");
  return h(
    "li",
    { class: `gpu ${health} ${gpu.residents.length ? "" : "idle"}`, key: gpu.uuid, title: told },
    h("span", { class: "sr" }, told),
    h(
      "span",
      { class: "gpu-face", "aria-hidden": "true" },
      h("span", { class: "gpu-top" }, h("span", { class: "gpu-index" }, String(gpu.index)), health === "healthy" ? h("span", { class: "gpu-watts" }, isKnown(gpu.power_w) ? watts(gpu.power_w) : "? W") : badge(health, health === "unhealthy" ? "bad" : "warn")),
      bar(gpu.utilisation_pct, 100),
      bar(gpu.memory_used_mib, gpu.memory_total_mib, "memory"),
      h("span", { class: "gauge" }, h("span", null, isKnown(gpu.utilisation_pct) ? percent(gpu.utilisation_pct) : "? %"), h("span", null, isKnown(gpu.memory_used_mib) ? memory(gpu.memory_used_mib) : "? GiB")),
      h("span", { class: "who" }, gpu.residents.map((jobId) => h("span", { class: `stripe ${data.residents[jobId]?.state || ""}`, key: jobId, style: { "--hue": hueOf(jobId) } }))),
    ),
  );
}

function resident(jobId, indices, job) {
  if (!job) return null;
  const done = job.units_total ? job.units_done / job.units_total : null;
  return h(
    "li",
    { key: jobId },
    chip(job),
    leaseBadge(job.state),
    h("span", { class: "fine where" }, `GPU ${ranges(indices)}`),
    h("span", { class: "progress" }, done === null ? null : bar(done * 100, 100, "job"), h("span", { class: "fine" }, job.units_total === null ? `${job.units_done} units` : units(job.units_done, job.units_total))),
    h("span", { class: "fine" }, job.slowdown === null ? (job.stretch === null ? "" : `stretch ${number(job.stretch, 2)}`) : `slowed ${factor(job.slowdown)}`),
  );
}
