"use strict";
// Fetches the page again every few seconds and takes over what has changed. Elements stay the same objects as long as
// their keys do, so that focus, scroll positions, open details and typed text stay as well.
(() => {
  const EVERY = 5000, LONGEST = 60000, PATIENCE = 10000;
  const byId = id => document.getElementById(id);
  const fresh = byId("fresh"), pause = byId("pause"), stale = byId("stale");
  let paused = false, timer = 0, failures = 0, busy = null;

  const keyOf = node => node.nodeType === 1 ? node.id || node.dataset.key || "" : "";

  // What the reader did, and not the server.
  const isOurs = (element, name) =>
    name === "open" && element.localName === "details" || name === "hidden";

  function attributes(old, now) {
    for (const {name} of [...old.attributes])
      if (!now.hasAttribute(name) && !isOurs(old, name)) old.removeAttribute(name);
    for (const {name, value} of now.attributes)
      if (old.getAttribute(name) !== value && !isOurs(old, name)) old.setAttribute(name, value);
  }

  function children(old, now) {
    const wanted = new Set(), keyed = new Map();
    for (const child of now.childNodes) wanted.add(keyOf(child));
    for (const child of [...old.childNodes]) {
      const key = keyOf(child);
      if (key && !wanted.has(key)) child.remove();
      else if (key && !keyed.has(key)) keyed.set(key, child);
    }
    let at = old.firstChild;
    for (const child of now.childNodes) {
      const key = keyOf(child);
      let same = null;
      if (key) {
        same = keyed.get(key);
        keyed.delete(key);
      } else if (at && !keyOf(at) && at.nodeName === child.nodeName) same = at;
      if (!same) {
        old.insertBefore(document.importNode(child, true), at);
        continue;
      }
      if (same === at) at = at.nextSibling;
      else old.insertBefore(same, at);
      morph(same, child);
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  function morph(old, now) {
    if (old.nodeType !== 1) {
      if (old.nodeValue !== now.nodeValue) old.nodeValue = now.nodeValue;
    } else if (!old.classList.contains("filter") && !old.isEqualNode(now)) {
      attributes(old, now);
      children(old, now);
    }
  }

  function take(text) {
    const now = new DOMParser().parseFromString(text, "text/html");
    const main = now.getElementById("main");
    if (!main) throw new Error("what came is not this page");
    if (now.documentElement.dataset.version !== document.documentElement.dataset.version) {
      location.reload();
      return;
    }
    const focused = document.activeElement;
    morph(byId("main"), main);
    // An element that is moved loses the focus.
    if (focused && focused !== document.activeElement && focused.isConnected) focused.focus({preventScroll: true});
    if (document.title !== now.title) document.title = now.title;
    start();
  }

  async function refresh() {
    clearTimeout(timer);
    if (busy || paused || document.hidden) return;
    busy = new AbortController();
    const limit = setTimeout(() => busy.abort(), PATIENCE);
    try {
      const answer = await fetch(location.pathname + location.search, {cache: "no-store", signal: busy.signal});
      if (!answer.ok) throw new Error("it answers " + answer.status);
      take(await answer.text());
      failures = 0;
      stale.hidden = true;
      document.body.classList.remove("is-stale");
    } catch (error) {
      failures++;
      const why = error.name === "AbortError" ? "it does not answer" : error.message;
      const words = "Out of date: the agent cannot be reached (" + why + "). What is shown is from " + seen() + ".";
      if (stale.textContent !== words) stale.textContent = words;
      stale.hidden = false;
      document.body.classList.add("is-stale");
    }
    clearTimeout(limit);
    busy = null;
    tell();
    next();
  }

  function next() {
    clearTimeout(timer);
    if (!paused && !document.hidden) timer = setTimeout(refresh, Math.min(EVERY * 2 ** Math.min(failures, 4), LONGEST));
  }

  const seen = () => byId("seen-at") ? byId("seen-at").textContent : "before";

  function tell() {
    fresh.textContent = paused ? "Paused, as of " + seen() : failures ? "Trying again" : "Live, as of " + seen();
    pause.textContent = paused ? "Go on" : "Pause";
    pause.setAttribute("aria-pressed", String(paused));
  }

  // Rows are what a filter counts; those that do not fit are hidden, and so is the head of a group without any.
  function filter(form) {
    const target = byId(form.dataset.for);
    if (!target) return;
    const words = form.querySelector("[data-text]").value.toLowerCase().split(/\s+/).filter(Boolean);
    const select = form.querySelector("[data-select]");
    const state = select ? select.value : "";
    const rows = target.querySelectorAll("tbody tr:not(.group), li.row");
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every(word => text.includes(word)) || state !== "" && row.dataset.state !== state;
      if (!row.hidden) shown++;
    }
    let head = null;
    for (const row of target.querySelectorAll("tbody tr")) {
      if (row.classList.contains("group")) (head = row).hidden = true;
      else if (head && !row.hidden) head.hidden = false;
    }
    const said = words.length || state ? shown + " of " + rows.length : "";
    const output = form.querySelector("output");
    if (output.textContent !== said) output.textContent = said;
    // What was found may be in lists that are closed.
    for (const list of target.querySelectorAll("details"))
      if (words.length && list.querySelector("li.row:not([hidden])")) list.open = true;
  }

  function start() {
    for (const form of document.querySelectorAll(".filter")) {
      if (form.hidden) {
        form.hidden = false;
        form.addEventListener("input", () => filter(form));
      }
      filter(form);
    }
  }

  pause.addEventListener("click", () => {
    paused = !paused;
    tell();
    if (paused) clearTimeout(timer);
    else refresh();
  });
  document.addEventListener("visibilitychange", () => document.hidden ? clearTimeout(timer) : refresh());
  byId("live").hidden = false;
  start();
  tell();
  next();
})();
