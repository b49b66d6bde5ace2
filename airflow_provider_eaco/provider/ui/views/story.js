// The tab of a task instance or DAG run: where it runs or ran, beside whom, how fast, and why it waited.

import { h } from "../dom.js";
import { change } from "../api.js";
import { hueOf } from "../colours.js";
import { counted, duration, energy, factor, instant, isKnown, number, ranges, units, watts } from "../format.js";
import { badge, bar, button, chip, empty, pager, reasons, since } from "../parts.js";
import { decision } from "./decisions.js";

export const title = "GPUs";

const LIMIT = 20;
const state = { offset: 0 };
const asked = new URLSearchParams(location.search);

export function path() {
  const wanted = new URLSearchParams({ limit: String(LIMIT), offset: String(state.offset) });
  for (const name of ["dag_id", "run_id", "task_id", "map_index"]) {
    const value = asked.get(name);
    // Airflow leaves the braces where a view has no such part.
    if (value !== null && value !== "" && !value.startsWith("{")) wanted.set(name, value);
  }
  return `task-jobs?${wanted}`;
}

export function render(data, page) {
  if (!data.items.length) {
    return empty("No GPUs were asked for here", "Tasks with a GPU request appear as soon as Airflow has queued them.");
  }
  return [
    pager(data, (offset) => {
      state.offset = offset;
      page.refresh();
    }),
    data.items.map((job, index) => story(job, index === 0, page)),
  ];
}

const KINDS = { running: "good", leased: "good", waiting: "warn", failed: "bad", rejected: "bad" };

function story(job, open, page) {
  return h(
    "article",
    { class: "story", key: job.job_id, "aria-label": job.label },
    h(
      "header",
      null,
      chip(job),
      badge(job.state, KINDS[job.state.split(",")[0]] || "plain"),
      h("span", { class: "fine" }, job.request, ` · family ${job.family} · Airflow pool ${job.airflow_pool || "unknown"}`),
      h("span", { class: "spread" }),
      job.state.startsWith("waiting") && job.may_change ? holdButton(job, page) : null,
    ),
    job.reasons.length ? waiting(job) : null,
    facts(job),
    job.stays.length ? [h("h3", null, "Placement"), h("ul", { class: "stays" }, job.stays.map((stay) => placement(stay, job)))] : null,
    h(
      "details",
      open ? { initially: { open: "" } } : null,
      h("summary", null, "What happened"),
      events(job),
    ),
    h("details", null, h("summary", null, `Decisions (${job.decisions.length})`), h("ol", { class: "decisions" }, job.decisions.map(decision))),
  );
}

/** What happened to a job, in order, or that nothing has. */
export function events(job) {
  if (!job.events.length) return h("p", { class: "fine" }, "Nothing has happened yet.");
  return h("ol", { class: "events" }, job.events.map((event, index) => h("li", { key: `${event.at_s}-${index}` }, h("time", { class: "fine" }, instant(event.at_s)), badge(event.event), " ", event.text)));
}

function holdButton(job, page) {
  const verb = job.on_hold ? "release" : "hold";
  return button(job.on_hold ? "Release" : "Hold", () => page.act(() => change("POST", `jobs/${encodeURIComponent(job.job_id)}/${verb}`), job.on_hold ? `${job.label} released` : `${job.label} is held until somebody releases it`), { "aria-label": `${job.on_hold ? "Release" : "Hold"} ${job.label}` });
}

function waiting(job) {
  const place = job.position === null ? "" : `Position ${job.position} of ${job.of} in pool ${job.pool}. `;
  return h("div", { class: "why-box" }, h("p", { class: "fine" }, place, job.since_s === null ? "" : ["This reason has stood for ", since(job.since_s), "."]), reasons(job.reasons));
}

function fact(name, value, more) {
  return h("div", { class: "fact" }, h("dt", null, name), h("dd", null, value, more ? h("span", { class: "fine" }, more) : null));
}

function facts(job) {
  const done = job.units_total ? (job.units_done / job.units_total) * 100 : null;
  return h(
    "dl",
    { class: "facts" },
    fact("Units", units(job.units_done, job.units_total), bar(done, 100, "job")),
    fact("Slowdown now", factor(job.slowdown), "unit time here / alone"),
    fact("Stretch", job.stretch === null ? "unknown" : number(job.stretch, 3), job.max_stretch === null ? "no limit" : `limit ${job.max_stretch}`),
    fact("Waited", duration(job.waited_s), `queued ${instant(job.queued_s)}`),
    used(job.energy_record),
    drawn(job.energy_record),
  );
}

function used(record) {
  if (record === null) return fact("Energy", "unknown", "nothing is recorded");
  const carbon = record.co2e_g === null ? "" : `, ${number(record.co2e_g, 1, "g")} CO2e`;
  const split = record.split_by.length ? `, split by ${record.split_by.join(", ")}` : "";
  return fact("Energy", energy(record.energy_j, record.partial), `${record.method}${split}${carbon}`);
}

function drawn(record) {
  const peak = record === null ? null : record.peak_w;
  return fact("Power", watts(record === null ? null : record.mean_w), `on average; ${watts(peak)} at most`);
}

function placement(stay, job) {
  const highest = Math.max(...job.stays.map((each) => each.mean_w || 0));
  const length = (stay.until_s ?? job.now_s) - stay.from_s;
  return h(
    "li",
    { key: String(stay.token), style: { "--hue": hueOf(job.job_id) } },
    h("span", { class: "where" }, stay.node, h("span", { class: "fine" }, `GPU ${ranges(stay.gpus)}`)),
    h("span", null, instant(stay.from_s), h("span", { class: "fine" }, stay.until_s === null ? `for ${duration(length)}, still there` : `for ${duration(length)}`)),
    h("span", { class: "watts" }, isKnown(stay.mean_w) ? bar(stay.mean_w, highest, "energy") : null, h("span", null, isKnown(stay.mean_w) ? `${watts(stay.mean_w)} on average` : "watts unknown"), h("span", { class: "fine" }, isKnown(stay.energy_j) ? energy(stay.energy_j) : "energy unknown")),
    h("span", { class: "beside" }, stay.beside.length ? ["beside ", stay.beside.map((other) => chip(other))] : "alone", h("span", { class: "sr" }, counted(stay.beside.length, "other task"))),
    curve(stay, job),
  );
}

const WIDE = 640;
const HIGH = 72;

/** Watts over the time of a placement, as steps; where nothing was measured there is no step. */
function curve(stay, job) {
  const steps = stay.watts.filter((step) => isKnown(step.mean_w));
  if (steps.length < 2) return null;
  const until = Math.max(stay.until_s ?? job.now_s, steps.at(-1).until_s);
  const most = Math.max(...steps.map((step) => step.mean_w));
  const least = Math.min(...steps.map((step) => step.mean_w));
  const x = (at) => (((at - stay.from_s) / (until - stay.from_s)) * WIDE).toFixed(1);
  const y = (mean) => (HIGH - (most > 0 ? mean / most : 0) * (HIGH - 4)).toFixed(1);
  const told = `Watts over time: from ${watts(least)} to ${watts(most)}, ${watts(steps.at(-1).mean_w)} at the end`;
  return h(
    "figure",
    { class: "curve" },
    h("figcaption", { class: "fine" }, told),
    h(
      "svg",
      { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": told, preserveAspectRatio: "none" },
      steps.map((step) => h("rect", { key: String(step.from_s), x: x(step.from_s), y: y(step.mean_w), width: Math.max(0.5, x(step.until_s) - x(step.from_s)), height: HIGH - y(step.mean_w) }, h("title", null, `${instant(step.from_s)} for ${duration(step.until_s - step.from_s)}: ${watts(step.mean_w)}`))),
    ),
  );
}
