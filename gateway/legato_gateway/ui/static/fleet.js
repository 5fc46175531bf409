// The workers, and the totals above them.

import { byId, count, keyed, make, setBar, setText } from "./dom.js";

export function show(view) {
  totals(view);
  keyed(byId("workers"), view.workers, (worker) => worker.worker, row, update);
}

function totals(view) {
  const ready = (pool) => view.workers.filter((worker) => poolOf(worker) === pool && stateOf(worker)[0] === "ready");
  const shown = [
    ["Under way", view.active], ["Queued in the gateway", view.queued],
    ["Prefill workers ready", ready("prefill").length], ["Decode workers ready", ready("decode").length],
  ];
  keyed(byId("totals"), shown, ([name]) => name,
    ([name]) => make("div", {}, make("dt", {}, name), make("dd")),
    (box, [, value]) => setText(box.lastChild, count(value)));
}

// A worker with both roles belongs to the decode pool.
export const poolOf = (worker) => (worker.role === "prefill" ? "prefill" : "decode");

export function stateOf(worker) {
  if (worker.connection !== "connected") return [worker.connection, worker.connection === "connecting" ? "warn" : "bad"];
  if (worker.problem) return ["unused", "bad"];
  return worker.draining ? ["draining", "warn"] : ["ready", "good"];
}

function row() {
  return make("tr", {},
    make("td", { class: "name" }),
    make("td", { "data-label": "Role" }),
    make("td", { class: "state", "data-label": "State" }),
    make("td", { class: "number", "data-label": "Queued tokens" }),
    make("td", { class: "number", "data-label": "Running" }),
    make("td", { class: "kv" }, make("div", { class: "bar", role: "img" }), make("span", { class: "small" })));
}

function update(element, worker) {
  const [name, role, state, queue, running, kv] = element.children;
  const [text, kind] = stateOf(worker);
  setText(name, worker.worker);
  setText(role, worker.ranks > 1 ? `${worker.role}, ${worker.ranks} ranks` : worker.role ?? "–");
  setText(state, worker.problem ? `${text}: ${worker.problem}` : text);
  state.dataset.kind = kind;
  setText(queue, count(worker.queue_tokens));
  setText(running, worker.slots ? `${count(worker.running)} of ${count(worker.slots)}` : count(worker.running));
  const total = worker.total_blocks || 1;
  const used = (worker.used_blocks ?? 0) + (worker.quarantined_blocks ?? 0), cached = worker.cached_blocks ?? 0;
  setBar(kv.firstChild, [["kv-used", used / total], ["kv-cached", cached / total]]);
  const label = `${count(used)} used, ${count(cached)} cached, ${count(worker.free_blocks)} free`;
  kv.firstChild.setAttribute("aria-label", label);
  setText(kv.lastChild, label);
}
