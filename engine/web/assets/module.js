// Follows the events of the agent. When something happens, it asks for the page again, and replaces the regions that differ:
// those with data-live. All else, and the page without it, is HTML.

const status = document.getElementById("stream");
const pause = 500; // ms: what happens together is one request
const ages = 30_000; // ms: "3 min ago" is not for ever
let stream = null;
let last = ""; // ID of the newest event
let waiting = 0; // of the request to come
let asking = false;
let again = false;
const seen = new Map(); // what the server sent last, by region
for (const region of document.querySelectorAll("[data-live]")) seen.set(region.id, region.innerHTML);

function say(text) {
  if (status && status.textContent !== text) status.textContent = text;
}

// soon asks for the page in a moment.
function soon() {
  if (waiting === 0) waiting = setTimeout(refresh, pause);
}

async function refresh() {
  waiting = 0;
  if (asking) {
    again = true;
    return;
  }
  asking = true;
  try {
    const answer = await fetch(location.href, { credentials: "same-origin", redirect: "manual" });
    if (answer.type === "opaqueredirect") {
      location.reload(); // to sign in
      return;
    }
    if (answer.status === 404) {
      location.reload(); // it is gone
      return;
    }
    if (!answer.ok) {
      say("not connected");
      return;
    }
    replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
    if (stream?.readyState === EventSource.OPEN) say("live");
  } catch {
    say("not connected");
  } finally {
    asking = false;
    if (again) {
      again = false;
      soon();
    }
  }
}

// replace puts in the regions that differ. What a person opened or focused stays.
function replace(page) {
  for (const region of document.querySelectorAll("[data-live]")) {
    const next = page.getElementById(region.id);
    if (!next || next.innerHTML === seen.get(region.id) || busy(region)) continue;
    seen.set(region.id, next.innerHTML);
    const open = [...region.querySelectorAll("details[open]")].map((d) => d.id);
    const focus = region.contains(document.activeElement) ? signature(document.activeElement) : "";
    region.replaceChildren(...next.childNodes);
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    if (focus) [...region.querySelectorAll("a, button, summary, pre")].find((e) => signature(e) === focus)?.focus();
  }
}

// busy reports whether a person fills in a form of a region.
function busy(region) {
  return region.contains(document.activeElement) && document.activeElement.matches("input:not([type=hidden]), select, textarea");
}

function signature(element) {
  return element.tagName + " " + (element.getAttribute("href") || element.id || element.textContent);
}

function connect() {
  if (stream || document.hidden) return;
  stream = new EventSource("/events" + (last ? "?after=" + encodeURIComponent(last) : ""));
  stream.onopen = () => say("live");
  stream.onmessage = (event) => {
    if (event.lastEventId) last = event.lastEventId;
    soon();
  };
  stream.onerror = () => {
    say("not connected");
    if (stream.readyState === EventSource.CLOSED) {
      stream = null;
      setTimeout(connect, 5_000);
    }
  };
}

// A page that is not seen holds no connection: browsers have six of them for all tabs together.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    stream?.close();
    stream = null;
    say("paused");
  } else {
    connect();
    soon();
  }
});
setInterval(() => {
  if (!document.hidden) soon();
}, ages);
connect();
