// What is believed about families, how old it is and where it comes from.

import { h } from "../dom.js";
import { change } from "../api.js";
import { factor, memory, number, percent, unitTime, watts } from "../format.js";
import { badge, button, empty, pager, since, table } from "../parts.js";

export const title = "Profiles";

const LIMIT = 50;
const state = { offset: 0, family: "", sure: null };

export function path() {
  const family = state.family ? `&family=${encodeURIComponent(state.family)}` : "";
  return `profiles?limit=${LIMIT}&offset=${state.offset}${family}`;
}

export function render(data, page) {
  const steers = page.summary?.may_steer;
  const list = data.items.length
    ? table("Profiles", [["Families", "task"], ["GPUs"], ["Pace"], ["Power", "number"], ["Utilisation", "number"], ["Memory", "number"], ["Samples", "number"], ["Source"], ["Age"], ...(steers ? [["", "action"]] : [])], data.items.map((item) => row(item, steers, page)))
    : empty("No profiles", "The first run of a family becomes its profile.");
  return [toolbar(data, steers, page), list];
}

function toolbar(data, steers, page) {
  return h(
    "div",
    { class: "toolbar" },
    h(
      "label",
      { class: "field" },
      h("span", null, "Family"),
      h("input", {
        type: "search",
        value: state.family,
        maxlength: 250,
        on: {
          input: (event) => {
            Object.assign(state, { family: event.target.value, offset: 0 });
            page.soon();
          },
        },
      }),
    ),
    pager(data, (offset) => {
      state.offset = offset;
      page.refresh();
    }),
    h("span", { class: "spread" }),
    h("a", { class: "button", href: "api/v1/profiles/export?format=csv", download: "profiles.csv" }, "Export CSV"),
    h("a", { class: "button", href: "api/v1/profiles/export?format=json", download: "profiles.json" }, "Export JSON"),
    steers ? importer(page) : null,
  );
}

function importer(page) {
  const read = async (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (!file) return;
    const text = await file.text();
    const format = file.name.toLowerCase().endsWith(".json") ? "json" : "csv";
    await page.act(() => change("POST", "profiles/import", { format, text }), `${file.name} imported`);
  };
  return h("label", { class: "button" }, "Import a file", h("input", { class: "sr", type: "file", accept: ".csv,.json", on: { change: read } }));
}

function row(item, steers, page) {
  const sets = item.slowdowns !== null;
  const name = item.families.join(" + ");
  return h(
    "tr",
    { key: item.profile_id, class: item.stale ? "stale" : "" },
    h("td", { class: "task" }, name, item.reference ? h("span", { class: "fine", title: item.reference }, item.reference) : null),
    h("td", { class: "when" }, `${item.gpu_count} × ${item.gpu_model}`),
    h("td", null, sets ? item.slowdowns.map(factor).join(", ") : unitTime(item.unit_s), h("span", { class: "fine" }, sets ? "slowdowns" : "a unit", item.spread === null ? "" : ` ± ${sets ? number(item.spread, 3) : unitTime(item.spread)}`)),
    h("td", { class: "number" }, watts(item.power_w), h("span", { class: "fine" }, item.power_of)),
    h("td", { class: "number" }, percent(item.utilisation_pct)),
    h("td", { class: "number" }, sets ? "–" : memory(item.memory_peak_mib)),
    h("td", { class: "number" }, String(item.samples), item.undone ? h("span", { class: "fine" }, `${item.undone} undone`) : null),
    h("td", null, badge(item.source.replace("_", "-"), item.source === "measured" ? "good" : "plain"), item.stale ? badge("stale", "warn") : null),
    h("td", null, since(item.updated_s)),
    steers ? h("td", { class: "action" }, actions(item, name, page)) : null,
  );
}

function actions(item, name, page) {
  const asked = state.sure === item.profile_id;
  const forget = () => {
    if (!asked) {
      state.sure = item.profile_id;
      return page.redraw();
    }
    state.sure = null;
    return page.act(() => change("DELETE", `profiles/${item.profile_id}`), `${name}: what was learnt is forgotten`);
  };
  return [
    button(item.stale ? "Trust again" : "Mark stale", () => page.act(() => change("PUT", `profiles/${item.profile_id}/stale`, { stale: !item.stale }), `${name} is ${item.stale ? "trusted again" : "stale: nothing about sharing is decided by it"}`), { class: "quiet", "aria-label": `${item.stale ? "Trust again" : "Mark stale"}: ${name}` }),
    item.source === "built_in" ? null : button(asked ? "Forget, really" : "Forget", forget, { class: asked ? "danger" : "quiet", "aria-label": `${asked ? "Really forget" : "Forget"} ${name}` }),
  ];
}
