// The waiting jobs in planned order: why, since when, and what would change it.

import { h } from "../dom.js";
import { follow, runAddress } from "../airflow.js";
import { change, nowS } from "../api.js";
import { duration, instant, UNKNOWN } from "../format.js";
import { badge, button, chip, choice, empty, pager, reasons, since, table } from "../parts.js";

export const title = "Queue";

const LIMIT = 50;
const state = { offset: 0, pool: "" };

export function path() {
  const pool = state.pool ? `&pool=${encodeURIComponent(state.pool)}` : "";
  return `queue?limit=${LIMIT}&offset=${state.offset}${pool}`;
}

/** How many wait, where this view knows it for all pools: newer than the totals at the top. */
export const waiting = (data) => (state.pool ? null : `${data.total}`);

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

const COLUMNS = [["#", "number"], ["Task", "task"], ["Asks for"], ["Why it waits", "why"], ["Reason since", "when"], ["Waits for", "when"], ["Expected start", "when"], ["", "action"]];

function row(item, page) {
  return h(
    "tr",
    { key: item.job_id, class: item.on_hold ? "on-hold" : "" },
    h("td", { class: "number" }, item.position === null ? "–" : `${item.position}`, h("span", { class: "fine" }, item.pool || "not planned yet")),
    h("td", { class: "task" }, chip(item), run(item)),
    h("td", null, item.request, item.family === null ? null : h("span", { class: "fine" }, item.family)),
    h("td", { class: "why" }, reasons(item.reasons)),
    h("td", { class: "when" }, since(item.since_s)),
    h("td", { class: "when" }, since(item.queued_s)),
    h("td", { class: "when" }, expected(item)),
    h("td", { class: "action" }, item.may_change ? holdButton(item, page) : item.on_hold ? badge("held", "warn") : null),
  );
}

function run(item) {
  const address = runAddress(item.dag_id, item.run_id);
  if (address === null) return h("span", { class: "fine" }, "run unknown");
  return h("a", { class: "fine", href: address, title: item.run_id, on: { click: follow } }, item.run_id);
}

/** In how long it is expected to start, with the error below it; both may be unknown. */
function expected(item) {
  const at = item.expected_start_s;
  if (at === null) return UNKNOWN;
  const known = item.earliest_start_s !== null && item.latest_start_s !== null;
  const error = known ? duration(Math.max(at - item.earliest_start_s, item.latest_start_s - at)) : UNKNOWN;
  return [h("time", { title: instant(at), datetime: new Date(at * 1000).toISOString() }, `in ${duration(Math.max(0, at - nowS()))}`), h("span", { class: "fine" }, `± ${error}`)];
}

function holdButton(item, page) {
  const verb = item.on_hold ? "release" : "hold";
  return button(
    item.on_hold ? "Release" : "Hold",
    () => page.act(() => change("POST", `jobs/${encodeURIComponent(item.job_id)}/${verb}`), item.on_hold ? `${item.label} released` : `${item.label} is held until somebody releases it`),
    { "aria-label": `${item.on_hold ? "Release" : "Hold"} ${item.label}` },
  );
}
