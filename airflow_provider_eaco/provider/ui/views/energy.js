// What was used, by whom, and what the same work would have taken alone.

import { h } from "../dom.js";
import { duration, energy, isKnown, number } from "../format.js";
import { bar, choice, empty, table } from "../parts.js";
import { report } from "./report.js";

export const title = "Energy";

const state = { days: 1, by: "by_dag" };
const GROUPS = [["by_team", "Team"], ["by_dag", "DAG"], ["by_task", "Task"], ["by_pool", "Airflow pool"]];

export const path = () => `energy?days=${state.days}`;
export { beside } from "./report.js";

export function render(data, page) {
  const groups = data[state.by];
  const largest = Math.max(0, ...groups.map((group) => group.energy_j || 0));
  const pick = (name, parse, again) => (value) => {
    state[name] = parse(value);
    again();
  };
  return [
    h(
      "div",
      { class: "toolbar" },
      choice("Jobs that used energy in the last", [[1, "day"], [7, "7 days"], [30, "30 days"], [366, "year"]], state.days, pick("days", Number, page.refresh)),
      choice("By", GROUPS, state.by, pick("by", String, page.redraw)),
    ),
    cards(data, page),
    groups.length
      ? table("Energy by group", COLUMNS(GROUPS.find(([key]) => key === state.by)[1]), groups.map((group) => row(group, largest)))
      : empty("No energy is recorded", "Records are written while tasks with GPUs run and when they end."),
    h("p", { class: "fine method" }, "Alone: ", data.method, " Whole jobs count, also with what they used before."),
    report(page),
  ];
}

const COLUMNS = (name) => [[name], ["Energy", "number"], ["", "wide"], ["GPU hours", "number"], ["Jobs", "number"], ["Same work alone", "number"], ["Difference", "number"]];

function saved({ compared_j: used, exclusive_j: alone }) {
  return isKnown(used) && isKnown(alone) && alone > 0 ? (alone - used) / alone : null;
}

const change = (share) => (share === null ? "unknown" : `${share >= 0 ? "−" : "+"}${Math.abs(share * 100).toFixed(1)} %`);

function card(name, value, more) {
  return h("section", { class: "card", "aria-label": name }, h("h2", null, name), h("p", { class: "figure" }, value), h("p", { class: "fine" }, more));
}

function cards(data, page) {
  const { total } = data;
  const share = saved(total);
  return h(
    "div",
    { class: "cards" },
    card("Now", page.summary?.summary.power || "unknown", "all GPUs together; unknown unless each is known"),
    card("Used", energy(total.energy_j, total.partial), `${total.jobs} jobs, ${duration(total.gpu_s)} of GPU time`),
    card("Same work alone", energy(total.exclusive_j), total.exclusive_j === null ? "no job's work alone is known" : `of jobs that used ${energy(total.compared_j)}`),
    card("Against exclusive", change(share), share === null ? "" : share >= 0 ? "less than alone" : "more than alone"),
  );
}

function row(group, largest) {
  return h(
    "tr",
    { key: group.name ?? "?" },
    h("td", { class: "task" }, group.name ?? "unknown"),
    h("td", { class: "number" }, energy(group.energy_j, group.partial)),
    h("td", { class: "wide" }, bar(group.energy_j, largest, "energy")),
    h("td", { class: "number" }, number(group.gpu_s / 3600, 2)),
    h("td", { class: "number" }, String(group.jobs)),
    h("td", { class: "number" }, energy(group.exclusive_j)),
    h("td", { class: "number" }, change(saved(group))),
  );
}
