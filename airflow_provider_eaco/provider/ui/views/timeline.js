// Who shared which GPU when: lanes of GPUs over time, with zoom and hover.

import { h } from "../dom.js";
import { nowS } from "../api.js";
import { hueOf } from "../colours.js";
import { duration, instant, ranges } from "../format.js";
import { button, choice, empty, isSilent, shortened, table } from "../parts.js";
import { split, ticks } from "./layout.js";

export const title = "Timeline";

const TALL = 26;
// So many GPUs that their lanes have to be thin.
const MANY = 64;
const THIN = 12;
const GAP = 6;
const HEAD = 22;
const MARKS = 9;
const LEFT = 132;
const WIDTH = 1180;
const RANGES = [[0.25, "15 min"], [1, "1 h"], [6, "6 h"], [24, "24 h"], [168, "7 days"]];
const ZOOM = 1.6;

// `window` is null while the view follows the present; else it stands still at [from, until].
const state = { hours: 1, window: null, hover: null, pointer: [0, 0], drag: null };

export const path = () => `timeline?hours=${state.hours}`;

export function render(data, page) {
  const [from, until] = state.window || [nowS() - state.hours * 3600, nowS()];
  return [
    toolbar(data, page, from, until),
    data.lanes.length ? chart(data, page, from, until) : empty("No GPU workers registered"),
    legend(),
    data.spans.length ? h("details", { class: "as-table" }, h("summary", null, "The same as a table"), list(data)) : null,
  ];
}

function toolbar(data, page, from, until) {
  const zoom = (by) => {
    zoomAt(data, (from + until) / 2, by, from, until);
    page.redraw();
  };
  return h(
    "div",
    { class: "toolbar" },
    choice("Show the last", RANGES, state.hours, (hours) => {
      Object.assign(state, { hours: Number(hours), window: null });
      page.refresh();
    }),
    button("+", () => zoom(ZOOM), { "aria-label": "Zoom in", title: "Zoom in" }),
    button("−", () => zoom(1 / ZOOM), { "aria-label": "Zoom out", title: "Zoom out" }),
    state.window
      ? button("Follow the present", () => {
          state.window = null;
          page.redraw();
        })
      : null,
    h("span", { class: "fine" }, `${instant(from)} to ${instant(until)}`, data.is_cut ? "; the oldest spans are left out" : ""),
  );
}

function zoomAt(data, at, by, from, until) {
  const length = Math.min(Math.max((until - from) / by, 2), data.until_s - data.from_s);
  const share = (at - from) / (until - from);
  moveTo(data, at - share * length, length);
}

function moveTo(data, from, length) {
  const start = Math.min(Math.max(from, data.from_s), nowS() - length);
  state.window = [start, start + length];
}

function chart(data, page, from, until) {
  const rows = placed(data.lanes, data.lanes.length > MANY ? THIN : TALL);
  const x = (at) => LEFT + ((at - from) / (until - from)) * (WIDTH - LEFT);
  const shown = (piece) => piece.until > from && piece.from < until;
  const of = new Map(data.lanes.map((lane) => [lane.uuid, []]));
  for (const span of data.spans) for (const uuid of span.gpu_uuids) of.get(uuid)?.push(span);
  const clip = ([start, end]) => [Math.max(x(start), LEFT), Math.min(x(end), WIDTH)];
  return h(
    "div",
    { class: "timeline", tabindex: "0", role: "region", "aria-label": "Timeline of GPUs", on: handlers(data, page, from, until) },
    h("svg", { class: "axis", viewBox: `0 0 ${WIDTH} ${HEAD}`, "aria-hidden": "true" }, axis(from, until, x)),
    h(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${rows.height}`, role: "img", "aria-label": `${data.lanes.length} GPUs, ${data.spans.length} stays of tasks; the table below says the same` },
      h("defs", null, hatch()),
      h("g", { class: "grid", key: "grid" }, ticks(from, until, MARKS).marks.map((at) => h("line", { key: String(at), x1: x(at), x2: x(at), y1: 0, y2: rows.height }))),
      data.lanes.map((lane) => h("g", { key: lane.uuid }, laneBack(lane, rows, clip), split(of.get(lane.uuid), nowS()).filter(shown).map((piece) => block(piece, rows, rows.top.get(lane.uuid), clip, data, page)))),
      rows.names.map(([name, top]) => h("text", { class: "node-name", key: `n-${name}`, x: 0, y: top + 17 }, shortened(name, 15), h("title", null, name))),
    ),
    state.hover ? tooltip(data) : null,
  );
}

function placed(lanes, height) {
  const top = new Map();
  const names = [];
  let y = 0;
  let node = null;
  for (const lane of lanes) {
    if (lane.node !== node) {
      if (node !== null) y += GAP * 2;
      node = lane.node;
      names.push([node, y]);
    }
    top.set(lane.uuid, y);
    y += height;
  }
  return { top, names, lane: height, height: y + GAP };
}

/** The instants above the lanes; they stay in sight however many lanes there are. */
function axis(from, until, x) {
  const { marks, step } = ticks(from, until, MARKS);
  const label = (at) => new Date(at * 1000).toISOString().slice(...(step >= 86400 ? [5, 10] : step < 60 ? [11, 19] : [11, 16]));
  return marks.map((at) => h("g", { key: String(at) }, h("line", { x1: x(at), x2: x(at), y1: HEAD - 5, y2: HEAD }), h("text", { x: x(at), y: 12, "text-anchor": x(at) > WIDTH - 20 ? "end" : "middle" }, label(at))));
}

function laneBack(lane, rows, clip) {
  const top = rows.top.get(lane.uuid);
  const height = rows.lane - (rows.lane === TALL ? 4 : 2);
  const silent = isSilent(lane.state) && lane.last_report_s !== null ? clip([lane.last_report_s, nowS()]) : null;
  return [
    h("rect", { key: "back", class: "lane", x: LEFT, y: top + 1, width: WIDTH - LEFT, height, rx: 3 }),
    rows.lane === TALL ? h("text", { key: "name", class: "lane-name", x: LEFT - 8, y: top + 16, "text-anchor": "end" }, String(lane.index)) : null,
    silent && silent[1] > silent[0] ? h("rect", { key: "silent", class: "silent", x: silent[0], y: top + 1, width: silent[1] - silent[0], height }) : null,
  ];
}

const hatch = () => h("pattern", { id: "trial-hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, h("rect", { width: 2.5, height: 7, class: "hatch" }));

function block(piece, rows, top, clip, data, page) {
  const { span } = piece;
  const [left, right] = clip([piece.from, piece.until]);
  const whole = rows.lane - (rows.lane === TALL ? 4 : 2);
  const [y, height] = [top + 1 + piece.top * whole, Math.max(piece.height * whole - 0.8, 2)];
  const inside = (trial) => (trial.until_s ?? nowS()) > piece.from && trial.from_s < piece.until;
  const trials = span.trials.filter((trial) => trial.until_s !== trial.from_s && inside(trial));
  const undos = span.trials.filter((trial) => trial.end === "undone" && trial.until_s >= piece.from && trial.until_s <= piece.until);
  const over = (event) => {
    state.hover = span;
    state.pointer = [event.clientX, event.clientY];
    page.redraw();
  };
  const out = () => {
    state.hover = null;
    page.redraw();
  };
  return h(
    "g",
    { key: `${span.token}-${piece.from}`, class: "block", style: { "--hue": hueOf(span.job_id) }, on: { pointerenter: over, pointermove: over, pointerleave: out } },
    h("rect", { class: "stay", x: left, y, width: Math.max(right - left, 1.5), height, rx: 2.5 }),
    trials.map((trial, index) => {
      const [start, end] = clip([Math.max(trial.from_s, piece.from), Math.min(trial.until_s ?? nowS(), piece.until)]);
      return end > start ? h("rect", { key: `t${index}`, class: "trial", x: start, y, width: end - start, height, fill: "url(#trial-hatch)" }) : null;
    }),
    undos.map((trial, index) => {
      const [at] = clip([trial.until_s, trial.until_s]);
      return h("path", { key: `u${index}`, class: "undo", d: `M${at - 5},${y - 1} h10 l-5,8 z` });
    }),
  );
}

function nameOf(span, data) {
  return data.jobs[span.job_id]?.label || `job ${span.job_id}`;
}

function tooltip(data) {
  const span = state.hover;
  const index = new Map(data.lanes.map((lane) => [lane.uuid, lane]));
  const lanes = span.gpu_uuids.map((uuid) => index.get(uuid)).filter(Boolean);
  const [left, top] = state.pointer;
  const trials = span.trials.map((trial) => (trial.end === "open" ? "on trial" : trial.end));
  return h(
    "div",
    { class: left > innerWidth / 2 ? "tooltip to-left" : "tooltip", style: { left: `${left}px`, top: `${top}px` }, role: "status" },
    h("strong", null, nameOf(span, data)),
    h("span", null, lanes.length ? `${lanes[0].node}, GPU ${ranges(lanes.map((lane) => lane.index))}` : "GPUs that are no longer there"),
    h("span", null, `${instant(span.from_s)}${span.until_s === null ? ", still there" : ` for ${duration(span.until_s - span.from_s)}`}`),
    trials.length ? h("span", null, `trials: ${trials.join(", ")}`) : null,
  );
}

function handlers(data, page, from, until) {
  const at = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const place = ((event.clientX - box.left) / box.width) * WIDTH;
    return from + ((place - LEFT) / (WIDTH - LEFT)) * (until - from);
  };
  return {
    wheel: (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoomAt(data, at(event), event.deltaY < 0 ? 1.25 : 0.8, from, until);
      page.redraw();
    },
    pointerdown: (event) => {
      state.drag = { at: at(event), from, length: until - from };
    },
    pointermove: (event) => {
      if (!state.drag || !event.buttons) return;
      const moved = at(event) - from - (state.drag.at - state.drag.from);
      if (Math.abs(moved) < (until - from) / 400) return;
      moveTo(data, state.drag.from - moved, state.drag.length);
      page.redraw();
    },
    pointerup: () => {
      state.drag = null;
    },
    keydown: (event) => {
      const length = until - from;
      const done = {
        "+": () => zoomAt(data, (from + until) / 2, ZOOM, from, until),
        "-": () => zoomAt(data, (from + until) / 2, 1 / ZOOM, from, until),
        ArrowLeft: () => moveTo(data, from - length / 5, length),
        ArrowRight: () => moveTo(data, from + length / 5, length),
      }[event.key];
      if (!done) return;
      event.preventDefault();
      done();
      page.redraw();
    },
  };
}

const legend = () =>
  h(
    "p",
    { class: "legend fine" },
    h("span", { class: "key stay-key" }), "one colour a task ",
    h("span", { class: "key trial-key" }), "on trial ",
    h("span", { class: "key undo-key" }), "undone ",
    h("span", { class: "key silent-key" }), "node silent or asleep. ",
    "Ctrl and wheel, or + and −, zoom; dragging or the arrow keys move.",
  );

function list(data) {
  const index = new Map(data.lanes.map((lane) => [lane.uuid, lane]));
  const rows = [...data.spans].reverse().slice(0, 200).map((span) => {
    const lanes = span.gpu_uuids.map((uuid) => index.get(uuid)).filter(Boolean);
    return h(
      "tr",
      { key: String(span.token) },
      h("td", { class: "task" }, nameOf(span, data)),
      h("td", null, lanes.length ? `${lanes[0].node}, ${ranges(lanes.map((lane) => lane.index))}` : "gone"),
      h("td", null, instant(span.from_s)),
      h("td", null, span.until_s === null ? "still there" : duration(span.until_s - span.from_s)),
      h("td", null, span.trials.map((trial) => (trial.end === "open" ? "on trial" : trial.end)).join(", ") || "none"),
    );
  });
  return table("Who was on which GPU", [["Task", "task"], ["GPUs"], ["From"], ["For"], ["Trials"]], rows);
}
