// Looks at every view of the page with a real browser: make web runs it. It ends with 1 at the first thing that is not right.
import { AxeBuilder } from "@axe-core/playwright";
import { chromium } from "playwright-core";
import assert from "node:assert/strict";

const targets = JSON.parse(process.env.TARGETS);
const wcag = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
const browser = await chromium.launch({ executablePath: process.env.HOMESTAK_BROWSER, args: ["--no-sandbox"] });

// open makes a browser that is signed in, and fails for what the page must not do.
async function open(target, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1100, height: 800 }, storageState: target.state, ...options });
  context.setDefaultTimeout(60_000);
  const page = await context.newPage();
  page.on("dialog", (d) => assert.fail("a script of a text runs: " + d.message()));
  page.on("pageerror", (e) => assert.fail("an error of the module: " + e));
  page.on("console", (m) => assert.ok(!/Content.Security.Policy|Refused to/.test(m.text()), m.text()));
  if (target.token) { // good for one use: the others get the cookie of the first one
    if (!target.state) {
      await page.goto(target.url + target.token);
      target.state = await context.storageState();
    }
    return page;
  }
  await page.goto(target.url + "/sign-in");
  await page.getByLabel("Read key or operator key").fill(process.env.KEY);
  await page.keyboard.press("Enter");
  await page.waitForURL(target.url + "/");
  return page;
}

async function accessible(page, what) {
  const { violations } = await new AxeBuilder({ page }).withTags(wcag).analyze();
  assert.deepEqual(violations.map((v) => `${v.id}: ${v.nodes.map((n) => n.target).slice(0, 3).join(" | ")}: ${v.nodes[0].failureSummary}`), [], what);
}

// textOf is the text of a view. What runs in a fleet that lives changes figures between two readings.
const textOf = async (page, target) => {
  const text = await page.locator("main").innerText();
  return target.token ? text.replace(/[0-9]+/g, "0") : text;
};

// unchanged is the text of a view. In a fleet that lives, both browsers load the view again until nothing happened meanwhile.
async function unchanged(page, still, target, view) {
  for (let i = 0; target.token && i < 100; i++) {
    await page.goto(target.url + view);
    const before = await textOf(page, target);
    await still.goto(target.url + view);
    await page.goto(target.url + view);
    if ((await textOf(page, target)) === before) break;
  }
  return textOf(page, target);
}

// linked finds an address of each sort of view that a page leads to.
async function linked(page, target) {
  const found = new Map([["/", "/"], ["/?wall", "/?wall"]]);
  for (const from of ["/", "/timeline"]) {
    await page.goto(target.url + from);
    for (const to of await page.locator("main a, nav a").evaluateAll((all) => all.map((a) => a.getAttribute("href")))) {
      const sort = to.replace(/^(\/[a-z]*)\/?[^?]*/, "$1").replace(/=[^&]*/g, "=");
      if (to.startsWith("/") && sort !== "/sign-out") found.set(sort, found.get(sort) ?? to);
    }
  }
  const views = [...found.values()];
  return [...views, ...views.filter((v) => /^\/(host|node)\//.test(v)).map((v) => v + "?plan=now")];
}

for (const target of targets) {
  const page = await open(target);
  const dark = await open(target, { colorScheme: "dark" });
  const narrow = await open(target, { viewport: { width: 320, height: 640 }, reducedMotion: "reduce" });
  const still = await open(target, { javaScriptEnabled: false });
  const views = target.views ?? await linked(page, target);
  for (const sort of ["/host/", "/node/", "/timeline", "/commit/"]) assert.ok(views.some((v) => v.startsWith(sort)), `no view ${sort} in ${views}`);
  for (const view of views) {
    const what = `${target.name} ${view}`;
    for (const p of [page, dark, narrow, still]) {
      const answer = await p.goto(target.url + view, { waitUntil: "domcontentloaded" });
      assert.equal(answer.status(), 200, what);
    }
    await accessible(page, what);
    await accessible(dark, what + " in the dark");
    const wide = await narrow.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= 320, `${what} is ${wide} wide on 320 px`);
    await accessible(narrow, what + " at 320 px");
    const scripted = await unchanged(page, still, target, view);
    assert.equal(await textOf(still, target), scripted, what + " without JavaScript");
    console.log("ok", what);
  }

  if (target.token) { // the rest is about pages whose contents the test chooses
    for (const p of [page, dark, narrow, still]) await p.context().close();
    continue;
  }

  // With the keyboard alone.
  await page.goto(target.url + "/");
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to content");
  const seen = new Set();
  for (let i = 0; i < 60; i++) {
    await page.keyboard.press("Tab");
    seen.add(await page.evaluate(() => document.activeElement.name || document.activeElement.textContent.trim()));
  }
  for (const name of ["Fleet", "Timeline", "Commit", "Sign out", "Reconcile now", "Suspend…", "q", "state", "Search"]) assert.ok(seen.has(name), name + " cannot be reached by Tab");
  await page.locator("summary").focus();
  await page.keyboard.press("Enter");
  await page.getByLabel("Reason").waitFor({ state: "visible" });
  await page.locator("#q").fill("web-1");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: /found/ }).waitFor();
  console.log("ok", target.name, "keyboard");

  // What happens is shown, also what happens while the stream is cut.
  await page.goto(target.url + "/");
  await page.getByText("live", { exact: true }).waitFor();
  await fetch(target.url + "/test/change?text=a+change");
  await page.getByText("a change").waitFor();
  await fetch(target.url + "/test/cut", { method: "POST" });
  await fetch(target.url + "/test/change?text=while+it+was+cut");
  await page.getByText("while it was cut").waitFor();
  await page.getByText("live", { exact: true }).waitFor();
  console.log("ok", target.name, "stream");
  for (const p of [page, dark, narrow, still]) await p.context().close();
}
await browser.close();
