// Load, KV pressure, and the desired and ready sizes of pools, over the last 15 minutes.

import { byId, clock, count, draw, keyed, make, setText } from "./dom.js";

const WINDOW = 900, LEAST = 60; // seconds shown
const STEP = 2; // seconds between samples
const LANE = 62, GAP = 24, LEFT = 2;
const POOLS = ["prefill", "decode"];

const samples = new Map(); // by gateway, oldest first
let shown = { from: 0, until: 1, points: [], sizes: {}, pools: [] };

// The time up to which the samples of all gateways are known.
export function known() {
  const last = [...samples.values()].map((list) => list.at(-1)?.time ?? 0);
  return last.length ? Math.min(...last) : 0;
}

export function start() {
  byId("cursor").addEventListener("input", readout);
  byId("chart").addEventListener("pointermove", (event) => {
    const box = byId("chart").getBoundingClientRect();
    move((event.clientX - box.left) / box.width);
  });
  new ResizeObserver(paint).observe(byId("chart"));
}

export function show(view) {
  take(view.gateways, view.now);
  const points = merged();
  const until = view.now, from = Math.min(until - LEAST, Math.max(until - WINDOW, points[0]?.time ?? until));
  const pools = POOLS.filter((pool) => view.scaling?.pools?.[pool] || points.some((point) => point.pools[pool]));
  shown = { from, until, points, sizes: sizes(view.scaling), pools };
  decisions(view.scaling, view.service);
  paint();
  readout();
}

function take(gateways, now) {
  for (const name of samples.keys()) if (!gateways.some((each) => each.gateway === name)) samples.delete(name);
  for (const gateway of gateways) {
    const list = samples.get(gateway.gateway) ?? [], last = list.at(-1)?.time ?? 0;
    list.push(...gateway.samples.filter((sample) => sample.time > last));
    samples.set(gateway.gateway, list.filter((sample) => sample.time > now - WINDOW));
  }
}

// Makes one point per step. Requests add up over gateways, but workers do not: every gateway sees all workers.
function merged() {
  const points = new Map();
  for (const list of samples.values()) {
    for (const sample of list) {
      const step = Math.floor(sample.time / STEP);
      const point = points.get(step) ?? { time: sample.time, active: 0, queued: 0, pools: {} };
      point.active += sample.active;
      point.queued += sample.queued;
      for (const [role, pool] of Object.entries(sample.pools)) {
        point.pools[role === "prefill" ? "prefill" : "decode"] = pool;
      }
      points.set(step, point);
    }
  }
  return [...points.values()].sort((a, b) => a.time - b.time);
}

const unix = (text) => Date.parse(text) / 1000;

// The changes of the desired size, by pool: [[time, size], …]. The first entry has the time 0.
function sizes(scaling) {
  const changes = {};
  for (const pool of POOLS) {
    const now = scaling?.pools?.[pool];
    if (!now) continue;
    const records = (scaling.records ?? []).filter((record) => record.pool === pool);
    changes[pool] = [[0, records[0]?.current ?? now.recommended], ...records.map((record) => [unix(record.time), record.recommended])];
    if (changes[pool].at(-1)[1] !== now.recommended) changes[pool].push([unix(now.time), now.recommended]);
  }
  return changes;
}

const sizeAt = (pool, time) => shown.sizes[pool]?.findLast(([since]) => since <= time)?.[1];

const pressure = (pool) => (pool && pool.total_blocks ? (100 * pool.used_blocks) / pool.total_blocks : 0);

const LANES = [
  { name: "Requests", areas: [["active", (p) => p.active], ["queued", (p) => p.queued]], least: 4 },
  { name: "Queued tokens", lines: (pool) => (p) => p.pools[pool]?.queue_tokens ?? 0, least: 100 },
  { name: "KV blocks used, %", lines: (pool) => (p) => pressure(p.pools[pool]), least: 100 },
  { name: "Workers, ready and desired", lines: (pool) => (p) => p.pools[pool]?.ready ?? 0, least: 2, recommended: true, steps: true },
];

function paint() {
  const width = byId("chart").clientWidth || 300, height = LANES.length * (LANE + GAP) + 18;
  const x = (time) => LEFT + ((time - shown.from) / (shown.until - shown.from)) * (width - 2 * LEFT);
  const lanes = LANES.map((lane, index) => paintLane(lane, index * (LANE + GAP) + GAP, x, width));
  const axis = [[shown.from, "start"], [shown.until, "end"]].map(([time, anchor]) =>
    draw("text", { x: x(time), y: height - 4, "text-anchor": anchor }, clock(time)));
  const mark = draw("line", { id: "mark", class: "mark", y1: GAP, y2: height - 18 });
  const label = "Requests, queued tokens, KV blocks used and workers over time; the slider below reads out the values";
  byId("chart").replaceChildren(
    draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...lanes, ...axis, mark));
  placeMark();
}

function paintLane(lane, top, x, width) {
  const points = shown.points.filter((point) => point.time >= shown.from);
  const most = Math.max(lane.least, ...points.flatMap((point) => values(lane, point)));
  const y = (value) => top + LANE - (value / most) * (LANE - 4);
  const parts = [
    draw("text", { x: LEFT, y: top - 5 }, lane.name),
    draw("text", { x: width - LEFT, y: top - 5, "text-anchor": "end" }, `up to ${count(most)}`),
    draw("line", { class: "grid", x1: 0, x2: width, y1: top + LANE, y2: top + LANE }),
  ];
  for (const [kind, value] of lane.areas ?? []) {
    if (points.length) parts.push(draw("path", { class: `a-${kind}`, d: area(points, value, x, y, y(0)) }));
  }
  for (const pool of lane.lines ? shown.pools : []) {
    const value = lane.lines(pool), at = (size) => y(size) - (lane.steps && pool === "prefill" ? 3 : 0); // shows both
    const some = points.filter((point) => lane.steps || point.pools[pool]); // without workers, 0 are ready
    parts.push(draw("path", { class: `line s-${pool}`, d: path(some.map((p) => [x(p.time), at(value(p))]), lane.steps) }));
    if (lane.recommended && shown.sizes[pool]) parts.push(...paintSizes(pool, x, at));
  }
  return draw("g", {}, ...parts);
}

function values(lane, point) {
  if (lane.areas) return lane.areas.map(([, value]) => value(point));
  return POOLS.flatMap((pool) => [lane.lines(pool)(point), lane.recommended ? sizeAt(pool, point.time) ?? 0 : 0]);
}

function paintSizes(pool, x, y) {
  const changes = shown.sizes[pool].filter(([time]) => time > shown.from && time <= shown.until);
  const ends = [[shown.from, sizeAt(pool, shown.from)], ...changes, [shown.until, sizeAt(pool, shown.until)]];
  return [
    draw("path", { class: `line recommended s-${pool}`, d: path(ends.map(([time, size]) => [x(time), y(size)]), true) }),
    ...changes.map(([time, size]) => draw("circle", { class: `s-${pool}`, cx: x(time), cy: y(size), r: 4 })),
  ];
}

function path(points, steps) {
  return points.map(([x, y], index) => {
    const to = `${x.toFixed(1)} ${y.toFixed(1)}`;
    return index === 0 ? `M${to}` : steps ? `H${x.toFixed(1)}V${y.toFixed(1)}` : `L${to}`;
  }).join("");
}

function area(points, value, x, y, bottom) {
  const top = path(points.map((point) => [x(point.time), y(value(point))]));
  return `M${x(points[0].time)} ${bottom}${top.replace("M", "L")}L${x(points.at(-1).time)} ${bottom}Z`;
}

function move(share) {
  byId("cursor").value = Math.round(Math.max(0, Math.min(1, share)) * 1000);
  readout();
}

function placeMark() {
  const width = byId("chart").clientWidth || 300;
  const at = LEFT + (byId("cursor").value / 1000) * (width - 2 * LEFT);
  for (const end of ["x1", "x2"]) byId("mark")?.setAttribute(end, at);
}

function readout() {
  const time = shown.from + (byId("cursor").value / 1000) * (shown.until - shown.from);
  const point = shown.points.findLast((each) => each.time <= time) ?? shown.points[0];
  placeMark();
  if (!point) return;
  const pools = shown.pools.map((pool) => {
    const sample = point.pools[pool], size = sizeAt(pool, point.time);
    return `${pool}: ${sample?.ready ?? 0} ready${size === undefined ? "" : `, ${size} recommended`}` +
      (sample ? `, ${count(sample.queue_tokens)} tokens queued, ${count(pressure(sample))} % of KV blocks used` : "");
  });
  const text = [`${clock(point.time)}: ${point.active} under way, ${point.queued} queued`, ...pools].join("; ");
  setText(byId("readout"), text);
  byId("cursor").setAttribute("aria-valuetext", text);
}

function decisions(scaling, service) {
  const records = [...(scaling?.records ?? [])].reverse();
  byId("undecided").hidden = records.length > 0;
  if (service) setText(byId("undecided"), scaling ? "No size was changed yet." : "scaling.mode of this service is Fixed.");
  keyed(byId("decisions"), records, (record) => `${record.pool} ${record.time}`, entry, () => {});
}

function entry(record) {
  const terms = record.terms.map((term) => `${term.reason} asks for ${term.workers.toFixed(2)}`).join(", ");
  const capped = record.cappedBy ? `, capped by ${record.cappedBy}` : "";
  const button = make("button", { type: "button" },
    `${clock(unix(record.time))}  ${record.pool} ${record.current} → ${record.recommended}: ${record.reason}${capped}`,
    make("br"), make("span", { class: "small" }, terms || "nothing asks for a worker"));
  const jump = () => move((unix(record.time) + STEP - shown.from) / (shown.until - shown.from));
  button.addEventListener("click", jump);
  button.addEventListener("focus", jump);
  return make("li", {}, button);
}
