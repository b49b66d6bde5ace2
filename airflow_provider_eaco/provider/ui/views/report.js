// The report of a month, as `airflow eaco report` tells it: all GPUs, then teams, pools, DAGs and families.

import { h } from "../dom.js";
import { nowS } from "../api.js";
import { duration, isKnown, number, UNKNOWN } from "../format.js";
import { choice, empty, table } from "../parts.js";

const JOULES_PER_KWH = 3.6e6;
const MONTHS = 12;
const MOST = 200;
const GROUPS = [["team", "Team"], ["pool", "Airflow pool"], ["dag", "DAG"], ["family", "Family (finished tries)"]];

const AGAIN_MS = 5000;

// `month` is null for the present one, `asked` the month of the newest request, `data` the newest answer.
const state = { month: null, by: "team", asked: null, askedMs: 0, data: null };

/** The present month, or one so many before it, as the server's clock has it. */
function monthBefore(count) {
  const now = new Date(nowS() * 1000);
  return new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - count, 1)).toISOString().slice(0, 7);
}

const chosen = () => state.month ?? monthBefore(0);
const told = () => (state.data?.month === chosen() ? state.data : null);

/** What the page asks for beside the view's own answer: at once when the month is another one. */
export const beside = {
  isNew: () => state.asked !== chosen() || (told() === null && Date.now() - state.askedMs > AGAIN_MS),
  path: () => {
    Object.assign(state, { asked: chosen(), askedMs: Date.now() });
    return `report?month=${chosen()}`;
  },
  take: (found) => {
    state.data = found;
  },
};

export function report(page) {
  return h(
    "section",
    { class: "report", "aria-label": "Report" },
    h("h2", null, "Report"),
    toolbar(page),
    told() === null ? h("p", { class: "loading" }, "Loading") : tables(told()),
  );
}

function months() {
  const past = Array.from({ length: MONTHS - 1 }, (_, index) => monthBefore(index + 1));
  return [[monthBefore(0), `${monthBefore(0)} (this month)`], ...past.map((month) => [month, month]), ["all", "all months"]];
}

function toolbar(page) {
  const file = (form, text) => h("a", { class: "button", href: `api/v1/report/export?format=${form}&month=${chosen()}`, download: `energy-${chosen()}.${form}` }, text);
  return h(
    "div",
    { class: "toolbar" },
    choice("Month (UTC)", months(), chosen(), (month) => {
      state.month = month;
      page.refresh();
    }),
    choice("Report by", GROUPS, state.by, (by) => {
      state.by = by;
      page.redraw();
    }),
    h("span", { class: "spread" }),
    file("csv", "Report as CSV"),
    file("html", "Report as HTML"),
  );
}

function tables(data) {
  if (!data.months.length) return empty(`No energy is recorded for ${data.month === "all" ? "any month" : data.month}`);
  const lines = data.lines.filter((line) => line.group === state.by);
  const [, name] = GROUPS.find(([by]) => by === state.by);
  return [
    table("All GPUs by month", monthColumns(data), data.months.map((month) => monthRow(month, data))),
    h("p", { class: "fine method" }, "Finished, failed and open tries, idle GPUs, strangers and unmatched energy add up to all GPUs."),
    lines.length ? table(`Report by ${name}`, lineColumns(name, data), lines.slice(0, MOST).map((line) => lineRow(line, data))) : empty("No try is in this table"),
    lines.length > MOST ? h("p", { class: "fine" }, `${lines.length - MOST} more are in the CSV.`) : null,
    h("p", { class: "fine method" }, data.method),
  ];
}

const kwh = (joules) => number(isKnown(joules) ? joules / JOULES_PER_KWH : null, 3, "kWh");
const figure = (text) => h("td", { class: "number" }, text);
const hasCost = (data) => data.price_per_kwh !== null;
const hasCarbon = (data) => data.carbon_g_per_kwh !== null;

/** Cost and CO2e as far as the site has a price and a factor. */
function priced(item, data) {
  return [
    hasCost(data) ? figure(number(item.cost, 2, data.currency)) : null,
    hasCarbon(data) ? figure(number(isKnown(item.co2e_g) ? item.co2e_g / 1000 : null, 3, "kg")) : null,
  ];
}

const pricedColumns = (data) => [...(hasCost(data) ? [["Cost", "number"]] : []), ...(hasCarbon(data) ? [["CO2e", "number"]] : [])];
const hasExcess = (data) => data.months.some(isExceeded);
const isExceeded = (month) => isKnown(month.excess_j) && month.excess_j > 1e-6 * Math.max(1, month.devices_j || 0);
const hasMeter = (data) => data.months.some((month) => month.node_j !== null);
const numbers = (...titles) => titles.map((title) => [title, "number"]);

function monthColumns(data) {
  return [
    ["Month"],
    ...numbers("All GPUs", "Finished", "Failed", "Open", "Idle", "Strangers", "Unmatched"),
    ...(hasExcess(data) ? numbers("Beyond the GPUs") : []),
    ...(hasMeter(data) ? numbers("Node meter", "Its GPUs") : []),
    ...pricedColumns(data),
  ];
}

function monthRow(month, data) {
  const parts = [month.devices_j, month.finished_j, month.failed_j, month.open_j, month.idle_j, month.strangers_j, month.unmatched_j];
  return h(
    "tr",
    { key: month.month },
    h("td", { class: "when" }, month.month),
    parts.map((joules) => figure(kwh(joules))),
    hasExcess(data) ? figure(isExceeded(month) ? kwh(month.excess_j) : "") : null,
    hasMeter(data) ? [figure(kwh(month.node_j)), figure(kwh(month.node_gpus_j))] : null,
    priced(month, data),
  );
}

function lineColumns(name, data) {
  return [["Month"], [name, "task"], ...numbers("Energy", "Of it failed", "GPU-hours", "Mean wait", "Stretch", "Saved"), ...pricedColumns(data)];
}

function lineRow(line, data) {
  return h(
    "tr",
    { key: `${line.month} ${line.name}` },
    h("td", { class: "when" }, line.month),
    h("td", { class: "task" }, line.name, h("span", { class: "fine" }, `${line.tries} ${line.tries === 1 ? "try" : "tries"}`)),
    figure(line.partial && line.energy_j !== null ? `at least ${kwh(line.energy_j)}` : kwh(line.energy_j)),
    figure(kwh(line.failed_j)),
    figure(number(line.gpu_h, 1)),
    figure(duration(line.wait_s)),
    figure(number(line.stretch, 3)),
    h("td", { class: "number" }, saved(line.saved_j), h("span", { class: "fine" }, `${line.compared} of ${line.tries} compared`)),
    priced(line, data),
  );
}

/** What was saved; what was lost reads so, since no amount is negative. */
function saved(joules) {
  if (joules === null) return UNKNOWN;
  return joules >= 0 ? kwh(joules) : `lost ${kwh(-joules)}`;
}
