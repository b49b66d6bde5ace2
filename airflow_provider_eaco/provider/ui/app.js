// The page: which view is shown, the one request that refreshes it, and what a click does.

import { get } from "./api.js";
import { h, patch } from "./dom.js";
import * as cluster from "./views/cluster.js";
import * as decisions from "./views/decisions.js";
import * as energy from "./views/energy.js";
import * as profiles from "./views/profiles.js";
import * as queue from "./views/queue.js";
import * as story from "./views/story.js";
import * as timeline from "./views/timeline.js";

const EVERY_MS = 2000;
const TYPING_MS = 350;
// Of so many requests one is for the totals at the top, where the view does not carry them.
const SUMMARY_EACH = 3;
// And one for what a view shows beside its own answer and may be a minute old.
const BESIDE_EACH = 30;
const VIEWS = { cluster, timeline, queue, energy, profiles, decisions };
const ofTask = /\/(task|run)$/.test(location.pathname);

const main = document.getElementById("page");
const page = { summary: null, act, refresh, redraw, soon };
let view = null;
let data = null;
let problem = null;
let notice = null;
let timer = null;
let ticks = 0;
let shownFor = 0;
let frame = null;

const viewOfHash = () => (ofTask ? story : VIEWS[location.hash.slice(1)] || cluster);

/** Draw before the next frame: many small changes, such as a moving pointer, are one drawing. */
function redraw() {
  frame ??= requestAnimationFrame(draw);
}

function draw() {
  if (frame !== null) cancelAnimationFrame(frame);
  frame = null;
  patch(main, ofTask ? null : header(), problem ? trouble() : null, h("main", { id: "view", tabindex: "-1", "aria-busy": data === null ? "true" : null }, body()), h("div", { class: "notice", role: "status", "aria-live": "polite" }, notice ? h("p", { class: notice.bad ? "bad" : "" }, notice.text) : null));
}

function body() {
  if (data !== null) return view.render(data, page);
  return problem ? null : h("p", { class: "loading" }, "Loading");
}

/** The totals at the top, in step with what the view shows. */
function totalsNow() {
  const totals = page.summary?.summary;
  const waiting = data !== null && view.waiting ? view.waiting(data) : null;
  return totals && waiting !== null ? { ...totals, waiting } : totals;
}

function header() {
  const totals = totalsNow();
  const links = Object.entries(VIEWS).map(([name, each]) => h("a", { href: `#${name}`, "aria-current": each === view ? "page" : null }, each.title, name === "queue" && totals && totals.waiting !== "0" ? h("span", { class: "count" }, totals.waiting) : null));
  return h(
    "header",
    { class: "top" },
    h("a", { class: "skip", href: "#view", on: { click: skip } }, "Skip to the content"),
    h("div", { class: "row" }, h("h1", null, "GPUs"), totals ? stats(totals) : null),
    h("nav", { class: "tabs", "aria-label": "Views" }, links),
  );
}

function skip(event) {
  event.preventDefault();
  document.getElementById("view").focus();
}

function stats(totals) {
  const stat = (value, name) => h("div", { class: "stat" }, h("dt", null, name), h("dd", null, value));
  return h(
    "dl",
    { class: "stats" },
    stat(`${totals.gpus_used} of ${totals.gpus}`, "GPUs in use"),
    totals.gpus_unhealthy === "0" ? null : stat(totals.gpus_unhealthy, "unhealthy"),
    totals.gpus_unknown === "0" ? null : stat(totals.gpus_unknown, "unknown"),
    stat(totals.running, "running"),
    stat(totals.waiting, "waiting"),
    stat(totals.power, "drawn now"),
    stat(totals.energy, "energy recorded"),
  );
}

const trouble = () => h("p", { class: "trouble", role: "alert" }, problem.status === 401 || problem.status === 403 ? `You may not see this: ${problem.message}` : `Not up to date: ${problem.message}. It is tried again.`);

/** Whose turn it is to be asked for: what a view shows beside, the totals at the top, or the view itself. */
function turn(asking) {
  if (data !== null && asking.beside && (asking.beside.isNew() || ticks % BESIDE_EACH === 0)) {
    return [asking.beside.path(), (found) => asking.beside.take(found)];
  }
  if (!ofTask && !asking.carriesSummary && data !== null && ticks % SUMMARY_EACH === 0) {
    return ["summary", (found) => Object.assign(page, { summary: found })];
  }
  const take = (found) => {
    data = found;
    if (asking.carriesSummary) page.summary = found;
  };
  return [asking.path(), take];
}

async function load() {
  const asking = view;
  const [path, take] = turn(asking);
  try {
    const found = await get(path);
    if (asking !== view) return;
    take(found);
    problem = null;
  } catch (error) {
    problem = error;
  }
  ticks += 1;
  draw();
}

/** Ask at once, and from then on in the usual rhythm. */
async function refresh() {
  clearTimeout(timer);
  const mine = (shownFor += 1);
  if (!document.hidden) await load();
  if (!document.hidden && mine === shownFor && data !== null && view.beside?.isNew()) await load();
  if (mine === shownFor) timer = setTimeout(refresh, EVERY_MS);
}

function soon() {
  clearTimeout(timer);
  timer = setTimeout(refresh, TYPING_MS);
}

/** Do what a user asked for, and say how it went. */
async function act(action, done) {
  try {
    await action();
    notice = { text: done };
  } catch (error) {
    notice = { text: error.message, bad: true };
  }
  ticks = 1;
  draw();
  await refresh();
}

async function show() {
  view = viewOfHash();
  data = null;
  problem = null;
  notice = null;
  ticks = 1;
  document.title = ofTask ? "GPUs" : `GPUs: ${view.title}`;
  draw();
  if (!ofTask && !view.carriesSummary && page.summary === null) page.summary = await get("summary").catch(() => null);
  await refresh();
}

addEventListener("hashchange", show);
document.addEventListener("visibilitychange", () => !document.hidden && refresh());
show();
