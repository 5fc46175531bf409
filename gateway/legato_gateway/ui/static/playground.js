// Asks the model, streams its answer, and shows which workers served it.

import { byId, count, make, seconds, setText } from "./dom.js";
import { servedBy } from "./requests.js";

let running = null; // AbortController of the running answer
let asked = ""; // id of the last request

export function start(headers) {
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!running) ask(headers());
  });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("playground").addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("ask").requestSubmit();
  });
}

export function show(view) {
  const names = [...new Set(view.models)], select = byId("model");
  if ([...select.options].map((option) => option.value).join() !== names.join()) {
    select.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
  }
  const request = asked && view.requests.find((each) => each.id === asked);
  if (request) setText(byId("served"), `Served by ${servedBy(request)}${attempts(request)}`);
}

function attempts(request) {
  const boundary = request.handoffs.map((each) => seconds(each.boundary_seconds));
  return (boundary.length ? `; paused ${boundary.join(" and ")} at hand-off` : "") +
    (request.attempt > 1 ? `; attempts: ${request.attempt}` : "");
}

async function ask(headers) {
  running = new AbortController();
  const answer = byId("answer"), began = performance.now();
  const stats = { first: 0, last: 0, tokens: 0, usage: null, error: "" };
  begin(answer);
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST", signal: running.signal, headers: { ...headers, "content-type": "application/json" },
      body: JSON.stringify(body()),
    });
    asked = response.headers.get("x-request-id") ?? "";
    if (!response.ok) {
      const { error } = await response.json();
      throw new Error(error?.message ?? error ?? `HTTP ${response.status}`);
    }
    for await (const event of events(response.body)) take(event, answer, stats);
    if (stats.error) throw new Error(stats.error);
  } catch (error) {
    fail(answer, error);
  } finally {
    end(answer, stats, began);
  }
}

function body() {
  return {
    model: byId("model").value, stream: true, stream_options: { include_usage: true },
    temperature: byId("temperature").valueAsNumber, max_tokens: byId("most").valueAsNumber,
    messages: [{ role: "user", content: byId("prompt").value }],
  };
}

function begin(answer) {
  answer.classList.remove("failed");
  answer.replaceChildren();
  answer.setAttribute("aria-busy", "true"); // screen readers announce it when it is complete
  setText(byId("served"), "");
  setText(byId("numbers"), "waiting for the first token …");
  byId("send").disabled = true;
  byId("stop").disabled = false;
}

function take(event, answer, stats) {
  if (event.error) stats.error = event.error.message;
  if (event.usage) stats.usage = event.usage;
  const text = event.choices?.[0]?.delta?.content;
  if (!text) return;
  stats.last = performance.now();
  stats.first ||= stats.last;
  stats.tokens += 1;
  answer.append(text);
  answer.scrollTop = answer.scrollHeight;
}

function fail(answer, error) {
  if (error.name === "AbortError") return;
  answer.classList.add("failed");
  answer.append(make("p", {}, `The request failed: ${error.message}`));
}

function end(answer, stats, began) {
  const stopped = running.signal.aborted ? "stopped; " : "";
  running = null;
  answer.setAttribute("aria-busy", "false");
  byId("send").disabled = false;
  const hadFocus = document.activeElement === byId("stop");
  byId("stop").disabled = true;
  if (hadFocus) byId("send").focus();
  const tokens = stats.usage?.completion_tokens ?? stats.tokens;
  const rate = stats.last > stats.first ? (tokens - 1) / ((stats.last - stats.first) / 1000) : 0;
  setText(byId("numbers"), stats.first
    ? `${stopped}first token after ${seconds((stats.first - began) / 1000)}, ${count(tokens)} tokens` +
      (rate ? `, ${rate.toFixed(1)} tokens/s` : "")
    : `${stopped}no token`);
}

// Yields the JSON of each event of a stream. A chunk may end in the middle of an event.
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").find((line) => line.startsWith("data: "))?.slice(6);
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}
