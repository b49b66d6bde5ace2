// Where the spans of a timeline lie. Pure: instants in, fractions of a lane out.

/**
 * Split the spans of one GPU so that those who were there at the same time stand one below the other.
 * Returns pieces { span, from, until, top, height } with top and height from 0 to 1.
 */
export function split(spans, untilS) {
  const ends = (span) => span.until_s ?? untilS;
  const cuts = [...new Set(spans.flatMap((span) => [span.from_s, ends(span)]))].sort((one, other) => one - other);
  const pieces = [];
  const open = new Map();
  for (let place = 0; place + 1 < cuts.length; place += 1) {
    const [from, until] = [cuts[place], cuts[place + 1]];
    const present = spans.filter((span) => span.from_s <= from && ends(span) >= until);
    present.forEach((span, index) => {
      const [top, height] = [index / present.length, 1 / present.length];
      const last = open.get(span.token);
      if (last && last.until === from && last.top === top && last.height === height) {
        last.until = until;
      } else {
        const piece = { span, from, until, top, height };
        open.set(span.token, piece);
        pieces.push(piece);
      }
    });
  }
  return pieces;
}

/** Instants to label on an axis of about `wanted` marks, at whole steps of a clock. */
export function ticks(fromS, untilS, wanted) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
  const step = steps.find((each) => (untilS - fromS) / each <= wanted) || steps.at(-1);
  const marks = [];
  for (let at = Math.ceil(fromS / step) * step; at <= untilS; at += step) marks.push(at);
  return { marks, step };
}
