// A colour for each job, the same on every view of this browser. Jobs that appear one after the other get
// hues that lie far apart, so that those on one GPU can be told from each other.

const KEY = "eaco-colours";
const KEPT = 600;
const GOLDEN_ANGLE = 137.508;

let known = null;

/** The hue of a job, from 0 to 359. */
export function hueOf(jobId) {
  if (known === null || !known.has(jobId)) remember(jobId);
  return known.get(jobId);
}

function remember(jobId) {
  known = read();
  if (known.has(jobId)) return;
  const last = [...known.values()].at(-1) ?? 212 - GOLDEN_ANGLE;
  known.set(jobId, Math.round((last + GOLDEN_ANGLE) % 360));
  while (known.size > KEPT) known.delete(known.keys().next().value);
  try {
    localStorage.setItem(KEY, JSON.stringify([...known]));
  } catch {
    // Without the storage colours last as long as the page.
  }
}

function read() {
  try {
    const stored = JSON.parse(localStorage.getItem(KEY) || "[]");
    return new Map([...(known || []), ...stored.filter(([id, hue]) => typeof id === "string" && Number.isFinite(hue))]);
  } catch {
    return known || new Map();
  }
}
