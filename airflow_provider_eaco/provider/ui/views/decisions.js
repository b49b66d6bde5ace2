// What was decided, the newest first, and why not otherwise.

import { h } from "../dom.js";
import { counted, factor, instant, number, percent, watts } from "../format.js";
import { badge, chip, choice, empty, pager, since } from "../parts.js";

export const title = "Decisions";

const LIMIT = 50;
const state = { offset: 0, pool: "" };

export function path() {
  const pool = state.pool ? `&pool=${encodeURIComponent(state.pool)}` : "";
  return `decisions?limit=${LIMIT}&offset=${state.offset}${pool}`;
}

export function render(data, page) {
  const pools = (page.summary?.pools || []).map((pool) => [pool.pool, pool.pool]);
  return [
    h(
      "div",
      { class: "toolbar" },
      choice("GPU pool", [["", "all"], ...pools], state.pool, (pool) => {
        Object.assign(state, { pool, offset: 0 });
        page.refresh();
      }),
      pager(data, (offset) => {
        state.offset = offset;
        page.refresh();
      }),
    ),
    data.items.length ? h("ol", { class: "decisions" }, data.items.map(decision)) : empty("Nothing was decided yet", "Decisions are stored when verdict or reason changes."),
  ];
}

const KINDS = { admit: "good", hold: "warn", reject: "bad" };

/** One decision as a list item; also part of a task's story. */
export function decision(item) {
  return h(
    "li",
    { class: `decision ${item.ended_s === null ? "" : "past"}`, key: String(item.decision_id) },
    h(
      "div",
      { class: "row" },
      badge(item.verdict, KINDS[item.verdict]),
      item.job ? chip(item.job) : h("span", { class: "kind" }, item.family === null ? "a kind of task" : `tasks of family ${item.family}`),
      h("span", { class: "fine" }, `${counted(item.gpus, "GPU")} · pool ${item.pool}`),
      h("span", { class: "spread" }),
      h("span", { class: "fine", title: instant(item.decided_s) }, since(item.decided_s), " ago", item.ended_s === null && item.verdict !== "admit" ? ", stands" : ""),
    ),
    item.node === null ? null : h("p", null, `${counted(item.gpu_uuids.length, "GPU")} on ${item.node}, `, item.co_residents.length ? ["beside ", item.co_residents.map((other) => chip(other))] : "alone", item.choice ? h("span", { class: "fine block" }, `because: ${item.choice}`) : null),
    item.prediction ? h("p", { class: "fine" }, prediction(item.prediction)) : null,
    item.reasons.length ? h("ul", { class: "lost" }, item.reasons.map((reason) => h("li", { key: reason.code }, badge(reason.code), " ", reason.sentence ?? "", h("span", { class: "fine" }, ` To change it: ${reason.what_would_change_it}.`)))) : null,
    item.alternatives.length ? alternatives(item) : null,
  );
}

/** The ways in which the job could have run; each says whether it was taken or why not. */
function alternatives(item) {
  return h(
    "details",
    null,
    h("summary", { class: "fine" }, `Ways that were weighed (${item.alternatives.length})`),
    h("ul", { class: "lost" }, item.alternatives.map((each, index) => h("li", { key: String(index) }, each.text))),
  );
}

function prediction(found) {
  const slowdowns = Object.entries(found.slowdowns).map(([family, value]) => `${family} ${factor(value)}`).join(", ");
  const known = found.measured ? "measured before" : `estimated, ${number(found.error * 100, 0)} % added`;
  return `expected: ${slowdowns || "no slowdown"}; ${watts(found.power_w)}; utilisation ${percent(found.utilisation_pct)} (${known})`;
}
