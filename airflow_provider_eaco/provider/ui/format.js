// Quantities in words, as on the command line: with their unit, and "unknown" where nothing usable is known.

export const UNKNOWN = "unknown";
const JOULES_PER_KWH = 3.6e6;
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

export const isKnown = (value) => typeof value === "number" && Number.isFinite(value) && value >= 0;

export function number(value, digits = 0, unit = "") {
  if (!isKnown(value)) return UNKNOWN;
  const text = Math.abs(value).toFixed(digits);
  return unit ? `${text} ${unit}` : text;
}

export const watts = (value) => number(value, 0, "W");
export const percent = (value) => (isKnown(value) && value <= 100 ? number(value, 0, "%") : UNKNOWN);
export const memory = (mib) => (isKnown(mib) ? number(mib / 1024, mib < 10240 ? 1 : 0, "GiB") : UNKNOWN);
export const factor = (value) => (isKnown(value) ? `× ${value.toFixed(2)}` : UNKNOWN);

/** Joules, and from one kilowatt-hour on kilowatt-hours, as in every sentence of the server. */
export function energy(joules, partial = false) {
  if (!isKnown(joules)) return UNKNOWN;
  const text = joules >= JOULES_PER_KWH ? number(joules / JOULES_PER_KWH, 3, "kWh") : number(joules, 0, "J");
  return partial ? `at least ${text}` : text;
}

export function duration(seconds) {
  if (!isKnown(seconds)) return UNKNOWN;
  let rest = Math.floor(seconds);
  const parts = [];
  for (const [size, name] of UNITS) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count || parts.length) parts.push(`${count} ${name}`);
  }
  return parts.slice(0, 2).filter((part) => !part.startsWith("0 ")).join(" ") || "0 s";
}

/** Seconds of a unit of work: short ones keep their decimals. */
export const unitTime = (seconds) => (isKnown(seconds) && seconds < 10 ? number(seconds, 2, "s") : duration(seconds));

export function instant(seconds) {
  if (typeof seconds !== "number" || !Number.isFinite(seconds)) return UNKNOWN;
  return `${new Date(seconds * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

export const units = (done, total) => `${done} of ${total === null ? UNKNOWN : total}`;

/** Indices such as 0, 1, 2, 5 as "0–2, 5". */
export function ranges(indices) {
  const runs = [];
  for (const index of [...indices].sort((one, other) => one - other)) {
    const last = runs.at(-1);
    if (last && index === last[1] + 1) last[1] = index;
    else runs.push([index, index]);
  }
  return runs.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(", ");
}

export const counted = (count, thing) => `${count} ${thing}${count === 1 ? "" : "s"}`;
