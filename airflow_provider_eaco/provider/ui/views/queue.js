// The waiting jobs in planned order: why, since when, and what would change it.

import { h } from "../dom.js";
import { change } from "../api.js";
import { badge, button, chip, choice, empty, pager, reasons, since, table } from "../parts.js";

export const title = "Queue";

const LIMIT = 50;
const state = { offset: 0, pool: "" };

export function path() {
  const pool = state.pool ? `&pool=${encodeURIComponent(state.pool)}` : "";
  return `queue?limit=${LIMIT}&offset=${state.offset}${pool}`;
}

export function render(data, page) {
  const pools = (page.summary?.pools || []).map((pool) => [pool.pool, pool.pool]);
  const list = data.items.length
    ? table("Waiting tasks in planned order", COLUMNS, data.items.map((item) => row(item, page)))
    : empty("No task waits", "Whatever asked for GPUs has got them.");
  return [
    h(
      "div",
      { class: "toolbar" },
      choice("GPU pool", [["", "all"], ...pools], state.pool, (pool) => {
        Object.assign(state, { pool, offset: 0 });
        page.refresh();
      }),
      h("span", { class: "fine" }, `${data.total} waiting`),
      pager(data, (offset) => {
        state.offset = offset;
        page.refresh();
      }),
    ),
    list,
  ];
}

const COLUMNS = [["#", "number"], ["Task", "task"], ["Asks for"], ["Why it waits", "why"], ["Reason since", "when"], ["Waits for", "when"], ["", "action"]];

function row(item, page) {
  return h(
    "tr",
    { key: item.job_id, class: item.on_hold ? "on-hold" : "" },
    h("td", { class: "number" }, item.position === null ? "–" : `${item.position}`, h("span", { class: "fine" }, item.pool || "not planned yet")),
    h("td", { class: "task" }, chip(item), h("span", { class: "fine", title: item.run_id }, item.run_id || "run unknown")),
    h("td", null, item.request, item.family === null ? null : h("span", { class: "fine" }, item.family)),
    h("td", { class: "why" }, reasons(item.reasons)),
    h("td", { class: "when" }, since(item.since_s)),
    h("td", { class: "when" }, since(item.queued_s)),
    h("td", { class: "action" }, item.may_change ? holdButton(item, page) : item.on_hold ? badge("held", "warn") : null),
  );
}

function holdButton(item, page) {
  const verb = item.on_hold ? "release" : "hold";
  return button(
    item.on_hold ? "Release" : "Hold",
    () => page.act(() => change("POST", `jobs/${encodeURIComponent(item.job_id)}/${verb}`), item.on_hold ? `${item.label} released` : `${item.label} is held until somebody releases it`),
    { "aria-label": `${item.on_hold ? "Release" : "Hold"} ${item.label}` },
  );
}
