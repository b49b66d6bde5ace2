// What several views are made of.

import { nowS } from "./api.js";
import { follow, taskAddress } from "./airflow.js";
import { hueOf } from "./colours.js";
import { h } from "./dom.js";
import { duration, instant, isKnown, percent, UNKNOWN } from "./format.js";

export const badge = (text, kind = "plain") => h("span", { class: `badge ${kind}` }, text);

/** Whether nobody knows what the GPUs of a node in this state do: it tells nothing, by our will or not. */
export const isSilent = (state) => state === "unavailable" || state === "asleep" || state === "waking";

const LEASE_KINDS = { trial: "trial", confirmed: "good", unconfirmed: "warn", yielding: "warn", exclusive: "plain" };
export const leaseBadge = (state) => badge(state, LEASE_KINDS[state] || "plain");

/** A job's name with its colour, as a link to its task instance; the title has the whole name. */
export function chip(job) {
  const name = job.label;
  const address = taskAddress(job);
  return h(
    address === null ? "span" : "a",
    { class: job.dag_id === null ? "chip hidden-job" : "chip", style: { "--hue": hueOf(job.job_id) }, title: name, href: address, on: address === null ? {} : { click: follow } },
    h("span", { class: "dot", "aria-hidden": "true" }),
    h("span", { class: "chip-name" }, name),
  );
}

const ENDING = 8;

/** A name of which the end is never cut, for names of nodes differ there. */
export function ending(name) {
  const letters = [...name];
  const cut = Math.max(0, letters.length - ENDING);
  return [cut ? h("span", { class: "name-start" }, letters.slice(0, cut).join("")) : null, h("span", { class: "name-end" }, letters.slice(cut).join(""))];
}

/** The same as one text of at most `most` letters. */
export function shortened(name, most) {
  const letters = [...name];
  return letters.length > most ? `${letters.slice(0, most - ENDING - 1).join("")}…${letters.slice(-ENDING).join("")}` : name;
}

/** A bar from 0 to `limit`; an unknown value has no bar, which is not an empty one. */
export function bar(value, limit, kind = "") {
  const share = isKnown(value) && isKnown(limit) && limit > 0 ? Math.min(1, value / limit) : null;
  return h(
    "span",
    { class: `bar ${kind} ${share === null ? "unknown" : ""}`, "aria-hidden": "true" },
    share === null ? null : h("span", { class: "fill", style: { "--share": share } }),
  );
}

export const utilisation = (value) => (value === null ? UNKNOWN : percent(value));

/** How long ago, with the instant as title. */
export function since(at) {
  const age = at === null ? UNKNOWN : duration(Math.max(0, nowS() - at));
  return h("time", { title: instant(at), datetime: at === null ? null : new Date(at * 1000).toISOString() }, age);
}

/** A table with a caption for screen readers; `columns` are [title, class] pairs. */
export function table(caption, columns, rows) {
  const head = columns.map(([title, kind]) => h("th", { scope: "col", class: kind }, title));
  return h(
    "div",
    { class: "table-frame", tabindex: "0", role: "region", "aria-label": caption },
    h("table", null, h("caption", { class: "sr" }, caption), h("thead", null, h("tr", null, head)), h("tbody", null, rows)),
  );
}

export const empty = (title, text) => h("div", { class: "empty" }, h("h2", null, title), text ? h("p", null, text) : null);

export function button(text, onClick, more = {}) {
  return h("button", { type: "button", ...more, on: { click: onClick } }, text);
}

/** Newer and older pages of a list. */
export function pager(page, onOffset) {
  if (page.total <= page.limit && page.offset === 0) return null;
  const last = Math.min(page.offset + page.limit, page.total);
  return h(
    "nav",
    { class: "pager", "aria-label": "Pages" },
    button("Previous", () => onOffset(Math.max(0, page.offset - page.limit)), { disabled: page.offset === 0 }),
    h("span", null, page.total ? `${page.offset + 1}–${last} of ${page.total}` : "0"),
    button("Next", () => onOffset(page.offset + page.limit), { disabled: last >= page.total }),
  );
}

/** A labelled choice. `options` are [value, text] pairs. */
export function choice(label, options, value, onChange) {
  return h(
    "label",
    { class: "field" },
    h("span", null, label),
    h(
      "select",
      { value: String(value), on: { change: (event) => onChange(event.target.value) } },
      options.map(([each, text]) => h("option", { value: each, selected: String(each) === String(value) }, text)),
    ),
  );
}

/** The reasons of a job that waits: the most severe as a sentence, all others below it. */
export function reasons(list) {
  const [first, ...others] = list;
  if (!first) return null;
  return h(
    "div",
    { class: "reasons" },
    h("p", { class: "sentence" }, first.sentence === null ? "hidden: its DAG is not yours to read" : first.sentence),
    h("p", { class: "fine" }, badge(first.code, first.code === "on_hold" ? "warn" : "plain"), " to change it: ", first.what_would_change_it),
    others.map((other) => h("p", { class: "fine" }, badge(other.code), " ", other.sentence === null ? "" : other.sentence)),
  );
}
