// Looks at every view of the page with a real browser: make web runs it. It ends with 1 at the first thing that is not right.
import { AxeBuilder } from "@axe-core/playwright";
import { chromium } from "playwright-core";
import assert from "node:assert/strict";

const targets = JSON.parse(process.env.TARGETS);
const wcag = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
const browser = await chromium.launch({ executablePath: process.env.HOMESTAK_BROWSER, args: ["--no-sandbox"] });

// open makes a browser that is signed in, and fails for what the page must not do.
async function open(target, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1100, height: 800 }, ...options });
  context.setDefaultTimeout(60_000);
  const page = await context.newPage();
  page.on("dialog", (d) => assert.fail("a script of a text runs: " + d.message()));
  page.on("pageerror", (e) => assert.fail("an error of the module: " + e));
  page.on("console", (m) => assert.ok(!/Content.Security.Policy|Refused to/.test(m.text()), m.text()));
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

const textOf = (page) => page.locator("main").innerText();

for (const target of targets) {
  const page = await open(target);
  const dark = await open(target, { colorScheme: "dark" });
  const narrow = await open(target, { viewport: { width: 320, height: 640 }, reducedMotion: "reduce" });
  const still = await open(target, { javaScriptEnabled: false });
  for (const view of target.views) {
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
    assert.equal(await textOf(still), await textOf(page), what + " without JavaScript");
    console.log("ok", what);
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
