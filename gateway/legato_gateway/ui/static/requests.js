// The latest requests, and the time that each spent in each phase.

import { byId, clock, count, keyed, make, seconds, setBar, setText } from "./dom.js";

const SHOWN = 15;
const PHASES = [["queue", "queue"], ["prefill", "fill"], ["handoff", "handoff"], ["decode", "tokens"]];

export function show(view) {
  const requests = view.requests.slice(0, SHOWN).map((request) => ({ ...request, spent: spent(request, view.now) }));
  byId("none").hidden = requests.length > 0;
  const longest = Math.max(...requests.map((request) => request.spent.total), 0.001);
  keyed(byId("recent"), requests, (request) => request.key, row, (element, request) => update(element, request, longest));
}

// Seconds by phase. A request without a token has waited for its first one until now.
export function spent(request, now) {
  const timings = request.seconds ?? {};
  const total = timings.total ?? Math.max(0, now - request.arrived);
  const first = timings.first_token ?? total;
  const known = (timings.queue ?? 0) + (timings.prefill ?? 0) + (timings.handoff ?? 0);
  return {
    total, queue: timings.queue ?? Math.max(0, first - known), prefill: timings.prefill, handoff: timings.handoff,
    decode: timings.first_token === undefined ? undefined : Math.max(0, total - timings.first_token),
  };
}

// The workers that served the request, as in "prefill-0 → decode-1".
export function servedBy(request) {
  return (request.workers ?? []).join(" → ") || "no worker yet";
}

function row() {
  return make("li", {}, make("details", {},
    make("summary", {}, make("span", { class: "what" }), make("span", { class: "bar", role: "img" }),
      make("span", { class: "time" })),
    make("dl")));
}

function update(element, request, longest) {
  const [summary, facts] = element.firstChild.children;
  const [what, bar, time] = summary.children;
  setText(what, servedBy(request));
  setBar(bar, PHASES.map(([phase, kind]) => [kind, (request.spent[phase] ?? 0) / longest]));
  bar.setAttribute("aria-label", PHASES.filter(([phase]) => request.spent[phase] !== undefined)
    .map(([phase]) => `${phase === "handoff" ? "hand-off" : phase} ${seconds(request.spent[phase])}`).join(", "));
  const state = request.stage === "ended" ? request.finish : request.stage;
  setText(time, `${count(request.output_tokens)} tokens, ${seconds(request.spent.total)}`);
  keyed(facts, listed(request, state), ([name]) => name,
    ([name]) => make("div", {}, make("dt", {}, name), make("dd")),
    (pair, [, value]) => setText(pair.lastChild, value));
}

function listed(request, state) {
  const timings = request.seconds ?? {}, shown = request.spent;
  return [
    ["Request", request.id], ["Arrived", clock(request.arrived)], ["State", state],
    ["Workers", servedBy(request)], ["Attempts", count(request.attempt)],
    ["Prompt", `${count(request.prompt_tokens)} tokens`], ["Answer", `${count(request.output_tokens)} tokens`],
    ["First token", seconds(timings.first_token)], ["Queue", seconds(shown.queue)], ["Prefill", seconds(shown.prefill)],
    ["Hand-off", seconds(shown.handoff)], ["Decode", seconds(shown.decode)],
    ["KV handed off", handedOff(request)], ["Route", request.why || "–"],
  ];
}

function handedOff(request) {
  return request.handoffs.map((each) => `${each.source} → ${each.target}: ${count(each.blocks)} blocks, ` +
    `${count(each.bytes / 1024)} KiB in ${seconds(each.seconds)}`).join("; ") || "nothing";
}
