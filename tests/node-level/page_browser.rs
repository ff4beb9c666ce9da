//! The page in a real browser. The screenshot in docs/ is created by `MILLRACE_UPDATE_SCREENSHOT=1 cargo test --workspace --test
//! node-level -- a_screenshot_can_be_taken`.

mod browser;
// The nodes of `report`'s tests, so that both show the same.
#[path = "../../pkg/report/tests/page/fixtures.rs"]
mod fixtures;
#[path = "../../pkg/report/tests/page/picture.rs"]
mod picture;
mod server;

use std::time::Duration;

use browser::Browser;
use kit::base64::{Engine as _, engine::general_purpose::STANDARD};
use report::{CaptureState, PodState, StatePart, StateReport, Unobserved};
use serde_json::{Value, json};
use server::Server;

use crate::fixtures::ambient::{Ambient, MESH};

/// Starts a browser that shows the state.
fn showing(state: StateReport) -> Option<(Browser, Server)> {
    let browser = Browser::start()?;
    let server = Server::start(state);
    open(&browser, &server.url());
    Some((browser, server))
}

/// Loads the page, up to the first document that it shows.
fn open(browser: &Browser, url: &str) {
    browser.open(url);
    browser.until("!!document.getElementById('headline-words')");
}

/// Text content of an element.
fn text(browser: &Browser, selector: &str) -> String {
    let text = browser.eval(&format!("document.querySelector('{selector}').textContent"));
    text.as_str().unwrap().to_owned()
}

/// Everything that the page should not have done.
fn complaints(browser: &Browser, server: &Server) -> Vec<Value> {
    let console = browser.events("Runtime.consoleAPICalled");
    let log = browser.events("Log.entryAdded");
    let thrown = browser.events("Runtime.exceptionThrown");
    let asked =
        browser.events("Network.requestWillBeSent").into_iter().map(|it| it["request"]["url"].clone());
    let is_ours = |url: &str| {
        let path = url.strip_prefix(&server.url());
        path.is_some_and(|path| {
            path.is_empty() || path == "debug/state" || path.starts_with("debug/explain?")
        })
    };
    let elsewhere =
        asked.filter(|url| !url.as_str().is_some_and(|url| is_ours(url) || url.starts_with("data:")));
    console.into_iter().chain(log).chain(thrown).chain(elsewhere).collect()
}

#[test]
fn a_node_of_250_pods_is_loaded_within_a_second() {
    let Some((browser, server)) = showing(fixtures::crowd(250)) else { return };
    // CPU time, because other tests compete for the CPUs, and the minimum of three, because they share its caches. The page waits
    // for nothing except the document.
    let load = || {
        let before = browser.cpu_time();
        open(&browser, &server.url());
        browser.cpu_time() - before
    };
    let used = (0..3).map(|_| load()).min().unwrap();
    assert_eq!(browser.eval("document.querySelectorAll('#pods-table tr[data-state]').length"), 250);
    // On a slower machine, a page of twelve pods takes longer as well.
    server.show(fixtures::well());
    let few = (0..3).map(|_| load()).min().unwrap();
    assert!(used < Duration::from_secs(1).max(few * 5), "{used:?}, and {few:?} with twelve pods");
    assert_eq!(complaints(&browser, &server), Vec::<Value>::new());
}

#[test]
fn a_thousand_pods_have_a_row_each_and_a_bounded_picture() {
    let Some((browser, server)) = showing(fixtures::crowd(1000)) else { return };
    assert_eq!(browser.eval("document.querySelectorAll('#pods-table tr[data-state]').length"), 1000);
    let tiles = "Math.max(...[...document.querySelectorAll('.tiles')].map(it => it.children.length))";
    assert_eq!(browser.eval(tiles), 320);
    assert_eq!(complaints(&browser, &server), Vec::<Value>::new());
}

#[test]
fn the_headline_says_how_the_node_is() {
    let Some((browser, server)) = showing(StateReport::default()) else { return };
    let says = |state: StateReport, words: &[&str]| {
        server.show(state);
        open(&browser, &server.url());
        let shown = text(&browser, "#headline");
        assert!(words.iter().all(|words| shown.contains(words)), "{words:?}: {shown}");
    };
    says(StateReport::default(), &["No pod of this node belongs to the mesh."]);
    let mut unread = StateReport::default();
    unread.observation.unobserved = vec![Unobserved::new(StatePart::UnrecordedPods, "1 namespace")];
    says(unread, &["!It is unknown which pods of this node belong to the mesh.", "!Pods: unknown"]);
    let nothing = "Unknown: the node could not be observed completely.";
    assert_eq!(["#pods-list", "#plan-list"].map(|list| text(&browser, list)), [nothing, nothing]);
    says(fixtures::well(), &["✓All 11 pods that belong to the mesh are captured."]);
    says(
        fixtures::bypassing(),
        &[
            "✗2 of 11 pods that belong to the mesh are bypassing it: the address of the pod is missing in the set of captured addresses.",
            "What to do:",
            "✗The node's network differs from the desired state in 3 places",
        ],
    );
    says(fixtures::rollout(), &["!1 of 10 pods that belong to the mesh is pending.", "!1 pod is leaving."]);
    says(
        fixtures::in_pod(),
        &[
            "✗1 of 11 pods that belong to the mesh is held: ztunnel refused the pod: no identity for this pod.",
        ],
    );
    says(
        fixtures::no_agent(),
        &[
            "✗The agent does not run on this node",
            "!It is unknown whether 3 pods are captured: the kernel could not be queried",
            "Unknown: firewall rules, because: iptables-save is not installed here.",
        ],
    );
    says(fixtures::unknown(), &["!It is unknown whether 11 pods are captured"]);
    says(
        fixtures::two_causes(),
        &[
            "5 of 11 pods that belong to the mesh are bypassing it, for 2 different causes.",
            "most frequent cause",
        ],
    );
    let mut one = fixtures::well();
    one.pods.truncate(1);
    says(one.clone(), &["The only pod that belongs to the mesh is captured."]);
    one.pods[0].capture = CaptureState::Bypassing;
    says(one.clone(), &["The only pod that belongs to the mesh is bypassing it."]);
    one.pods.clear();
    one.ztunnels.clear();
    one.node.active_slot = None;
    says(one.clone(), &["✗No ztunnel is ready on this node."]);
    one.node.ambient_enabled = false;
    says(one, &["✓No pod of this node belongs to the mesh.", "Node and ztunnel: ambient mode is off"]);
    assert_eq!(complaints(&browser, &server), Vec::<Value>::new());
}

#[test]
fn the_packet_flow_shows_what_is_wrong() {
    let Some((browser, server)) = showing(fixtures::well()) else { return };
    let says = |state: StateReport, words: &[&str]| {
        server.show(state);
        open(&browser, &server.url());
        let shown = text(&browser, "#figures");
        assert!(words.iter().all(|words| shown.contains(words)), "{words:?}: {shown}");
        shown
    };
    says(fixtures::well(), &["Link istioout0: ✓ up", "ztunnel-7x2kq: slot 0: new connections"]);
    says(fixtures::bypassing(), &["The node's rules: ≠ 3 differences", "Pods: 2 bypassing, 9 captured"]);
    let rollout = ["ztunnel-7x2kq: slot 0: earlier ones", "ztunnel-m9p4d: slot 1: new connections"];
    says(fixtures::rollout(), &rollout);
    let in_pod = ["Sockets of ztunnel-7x2kq: 15001, 15006, 15008", "istio-proxy: 15001 out, 15006 in"];
    says(fixtures::in_pod(), &in_pod);
    says(fixtures::no_agent(), &["The node's rules: ? 1 not observed"]);
    let mut down = fixtures::well();
    down.network.links.observed.as_mut().unwrap()[1].up = false;
    says(down.clone(), &["Link istioout0: ≠ down"]);
    down.network.links.observed.as_mut().unwrap().truncate(1);
    says(down, &["Link istioout0: ≠ missing"]);

    let mut reject = fixtures::no_ztunnel_hold();
    reject.node.no_ztunnel_policy = Some("reject".into());
    let hold = fixtures::no_ztunnel_hold();
    let missing = "No ztunnel is ready on this node: connections";
    for (state, then, others) in [
        (hold, format!("{missing} are held back"), "bypass"),
        (reject, format!("{missing} are refused"), "bypass"),
        (fixtures::no_ztunnel_open(), format!("{missing} bypass the mesh"), "held back"),
        (
            fixtures::no_ztunnel_in_pod(),
            "There is no ztunnel on this node: connections bypass the mesh".to_owned(),
            "refused",
        ),
    ] {
        let shown = says(state, &[&then]);
        assert!(!shown.contains(others), "{shown}");
        let headline = text(&browser, "#headline");
        assert!(headline.contains("app=ztunnel") && !headline.contains('✓'), "{headline}");
    }
    assert_eq!(complaints(&browser, &server), Vec::<Value>::new());
}

#[test]
fn a_link_leads_to_the_explanation_of_a_pod() {
    let Some((browser, server)) = showing(fixtures::bypassing()) else { return };
    browser.eval("document.querySelector('#pods-table th a').focus()");
    browser.press("Enter", 13);
    let explanation = "document.getElementById('explain/shop/payments')";
    browser.until(&format!("{explanation}.textContent.includes('What to do:')"));
    let shown = browser.eval(&format!("{explanation}.textContent"));
    let expected = report::explain_pod(&fixtures::bypassing(), "shop", "payments").to_string();
    assert_eq!(shown.as_str().unwrap(), expected.trim_end(), "as the command prints it");
    assert_eq!(browser.eval(&format!("{explanation}.closest('details').open")), true);

    // As above, for a user who opens the link in another tab.
    browser.open("about:blank");
    open(&browser, &format!("{}#explain/shop/web", server.url()));
    browser.until("document.getElementById('explain/shop/web').textContent.includes('What to do:')");
    assert_eq!(complaints(&browser, &server), Vec::<Value>::new());
}

#[test]
fn a_change_that_was_repeated_shows_since_when() {
    let mut state = fixtures::well();
    (state.history[0].repeats, state.history[0].first_started_at) = (6, Some("2026-11-20T09:00:00Z".into()));
    let Some((browser, _server)) = showing(state) else { return };
    let shown = text(&browser, "#history-table tbody tr td:nth-of-type(2)");
    assert_eq!(shown, "7 times since 2026-11-20 09:00:00 UTC (42 h ago): Enrolled it.");
}

/// A node on which every text from outside is this one.
fn saying(words: &str) -> StateReport {
    let mut state = fixtures::in_pod();
    state.network = fixtures::bypassing().network;
    let pod: &mut PodState = &mut state.pods[4];
    for text in
        [&mut pod.name, &mut pod.namespace, &mut pod.reason.message, &mut pod.reason.code, &mut pod.phase]
    {
        words.clone_into(text);
    }
    pod.last_transition_time = Some(words.to_owned());
    pod.problem = Some(words.to_owned());
    pod.kernel.differences = vec![words.to_owned()];
    pod.ztunnel.as_mut().unwrap().error = Some(words.to_owned());
    let (file, change, setting) = (&mut state.installation[0], &mut state.history[0], &mut state.config[0]);
    for text in [
        &mut state.ztunnels[0].name,
        &mut state.node.name,
        &mut state.version,
        &mut state.observation.observed_at,
        &mut state.health[0].message,
        &mut file.path,
        &mut file.message,
        &mut change.cause,
        &mut change.action,
        &mut setting.name,
        &mut setting.value,
        &mut state.network.firewall.desired[0].rule,
    ] {
        words.clone_into(text);
    }
    state.node.problem = Some(words.to_owned());
    state.network.foreign = vec![words.to_owned()];
    state.network.rules.differences = state.network.ipsets.differences.clone();
    words.clone_into(&mut state.network.rules.differences[0].object);
    state
}

#[test]
fn text_never_becomes_markup() {
    let Some((browser, server)) = showing(saying("harmless")) else { return };
    let structure = "[...document.querySelectorAll('*')].map(it => [it.localName, ...it.getAttributeNames()].join()).join(' ')";
    let harmless = browser.eval(structure);
    for hostile in [
        "<script>alert(1)</script>",
        "</main><img src=x onerror=alert(1)>",
        "\" onload='alert(1)",
        "--><!-- &lt;b&gt; ${alert(1)} \\",
        "a\0\u{202e}b\u{2068}",
    ] {
        server.show(saying(hostile));
        open(&browser, &server.url());
        assert_eq!(browser.eval(structure), harmless, "{hostile}");
        let shown = text(&browser, "#main");
        assert!(!shown.contains(['\0', '\u{202e}', '\u{2068}']), "{shown}");
    }
    assert_eq!(complaints(&browser, &server), Vec::<Value>::new());
}

#[test]
fn names_that_look_like_markup_do_nothing() {
    let mut state = fixtures::well();
    let hostile = "<img src=http://192.0.2.1/x onerror=\"document.title='taken'\">\"'</script><script>alert(1)</script>";
    state.pods[0].name = hostile.into();
    state.pods[0].reason.message = hostile.into();
    state.node.problem = Some(hostile.into());
    let Some((browser, server)) = showing(state) else { return };
    let shown = browser.eval("document.querySelector('#pods-table tbody').textContent");
    assert!(shown.as_str().unwrap().contains(hostile), "{shown}");
    assert_eq!(browser.eval("document.querySelectorAll('img').length + document.scripts.length"), 1);
    assert_eq!(complaints(&browser, &server), Vec::<Value>::new());
}

#[test]
fn a_difference_shows_by_itself_and_disturbs_nobody() {
    let Some((browser, server)) = showing(fixtures::well()) else { return };
    browser.resize(1000, 600, false);
    browser.eval("document.querySelector('[data-for=pods-table] input').focus()");
    browser.type_text("pay");
    browser.eval("document.getElementById('pod/shop/payments').querySelector('details').open = true");
    browser.eval("window.row = document.getElementById('pod/shop/payments'); window.news = document.getElementById('news')");
    browser.eval("document.getElementById('pods').scrollIntoView(); window.was = scrollY");

    let mut state = fixtures::well();
    fixtures::drift(&mut state);
    state.pods[3].capture = CaptureState::Bypassing;
    state.pods[3].kernel.observed.push("something new".into());
    state.pods.push(fixtures::node_pod(50, "shop", "zebra"));
    server.show(state);
    browser.until("document.getElementById('objects/rules').textContent.includes('≠ missing: ip -4 rule')");

    let is = |expression: &str| assert_eq!(browser.eval(expression), json!(true), "{expression}");
    is("document.getElementById('headline-words').textContent.includes('1 of 12 pods')");
    is("document.getElementById('news') === news && news.ariaLive === 'polite'");
    is("document.title.startsWith('1 of 12 pods')");
    is("document.getElementById('pod/shop/payments') === row && row.textContent.includes('something new')");
    is("row.dataset.state === 'bypassing' && row.textContent.includes('bypassing')");
    is("row.querySelector('details').open");
    is("document.activeElement.matches('[data-for=pods-table] input')");
    is("document.activeElement.value === 'pay' && document.activeElement.selectionStart === 3");
    is("document.getElementById('pod/shop/zebra').hidden && !row.hidden");
    is("Math.abs(scrollY - was) < 200 && scrollY > 0");

    // A removed pod disappears from the page, and the order is the server's.
    server.show(fixtures::well());
    browser.until("!document.getElementById('pod/shop/zebra') && row.dataset.state === 'captured'");
    is("document.querySelectorAll('#pods-table tr[data-state]')[5] === row");
    is("document.getElementById('objects/rules').textContent.includes('✓ 2 desired')");
    assert_eq!(complaints(&browser, &server), Vec::<Value>::new());
}

#[test]
fn the_page_says_when_it_is_out_of_date() {
    let Some((browser, server)) = showing(fixtures::well()) else { return };
    let is = |expression: &str| assert_eq!(browser.eval(expression), json!(true), "{expression}");
    is("document.getElementById('stale').hidden");
    server.fail();
    browser.until("!document.getElementById('stale').hidden");
    is("document.getElementById('stale').textContent.includes('HTTP status 503')");
    is("document.getElementById('stale').textContent.includes('from 2026-11-22 03:14:15 UTC')");
    is("document.querySelectorAll('#pods-table tr[data-state]').length === 12");
    server.show(fixtures::bypassing());
    browser.until("document.getElementById('stale').hidden");
    is("document.getElementById('headline-words').textContent.includes('2 of 11 pods')");
}

#[test]
fn a_page_that_is_paused_or_not_looked_at_asks_nothing() {
    let Some((browser, server)) = showing(fixtures::well()) else { return };
    let minute = || {
        browser.forget_events();
        let how = json!({"policy": "pauseIfNetworkFetchesPending", "budget": 60_000});
        browser.call("Emulation.setVirtualTimePolicy", how);
        browser.wait("Emulation.virtualTimeBudgetExpired");
        server.requests().len()
    };
    let first = minute();
    assert!((8..=16).contains(&first), "it asks every five seconds: {first}");
    browser.eval("document.getElementById('pause').click()");
    assert_eq!(browser.eval("document.getElementById('pause').textContent"), "Continue");
    assert_eq!(minute(), first, "paused");
    browser.eval("document.getElementById('pause').click()");
    let second = minute();
    assert!(second >= first + 8, "it goes on: {first}, then {second}");
    browser.eval("Object.defineProperty(document, 'hidden', {get: () => true, configurable: true})");
    browser.eval("document.dispatchEvent(new Event('visibilitychange'))");
    let second = minute();
    assert_eq!(minute(), second, "hidden");
    browser.eval("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))");
    assert!(minute() > second, "seen again");
}

#[test]
fn tables_filter_as_one_types() {
    let Some((browser, _server)) = showing(fixtures::bypassing()) else { return };
    let rows = || {
        let names = "[...document.querySelectorAll('#pods-table tbody tr:not([hidden]) > th')].map(it => it.textContent)";
        serde_json::from_value::<Vec<String>>(browser.eval(names)).unwrap()
    };
    assert_eq!(rows().len(), 12);
    let choose = |state: &str| {
        browser.eval(&format!(
            "{{ const it = document.querySelector('[data-select]'); it.value = '{state}'; \
             it.dispatchEvent(new Event('input', {{bubbles: true}})) }}"
        ));
    };
    choose("bypassing");
    assert_eq!(rows(), ["shop/payments", "shop/web"]);
    let heads = "[...document.querySelectorAll('tr.group:not([hidden])')].map(it => it.querySelector('.badge').textContent)";
    assert_eq!(browser.eval(heads), json!(["✗bypassing"]), "a group without rows has no head");
    browser.eval("document.querySelector('[data-for=pods-table] input').focus()");
    browser.type_text("PAY 10.244.3.13");
    assert_eq!(rows(), ["shop/payments"]);
    assert_eq!(browser.eval("document.querySelector('[data-for=pods-table] output').textContent"), "1 of 12");
    choose("outside");
    assert_eq!(rows(), Vec::<String>::new());
    browser.eval("document.querySelector('[data-for=objects-lists] input').focus()");
    browser.type_text("xmark");
    let open =
        "[...document.querySelectorAll('#objects-lists details[open]')].map(it => it.parentElement.id)";
    assert_eq!(browser.eval(open), json!(["objects/firewall"]));
}

#[test]
fn everything_is_reached_by_keyboard_and_the_focus_is_seen() {
    let Some((browser, _server)) = showing(fixtures::bypassing()) else { return };
    browser.press("Tab", 9);
    let here = "(() => { const it = document.activeElement, box = it.getBoundingClientRect(), style = getComputedStyle(it); \
        return { what: it.id || it.className || it.localName, kind: it.localName, \
        seen: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2 && \
        box.width > 0 && box.left >= 0 && box.top >= 0 && box.bottom <= innerHeight + box.height }; })()";
    let first = browser.eval(here);
    assert_eq!((&first["what"], &first["seen"]), (&json!("skip"), &json!(true)));
    let mut met = Vec::new();
    for _ in 0..120 {
        browser.press("Tab", 9);
        let now = browser.eval(here);
        if now["kind"] == "body" {
            break;
        }
        assert_eq!(now["seen"], true, "{now}");
        met.push(now["kind"].as_str().unwrap().to_owned());
    }
    let every = "document.querySelectorAll('main summary, main input, main select, header a, button, .scroll').length";
    let hidden = "document.querySelectorAll('details:not([open]) > :not(summary) :is(summary, input, .scroll)').length";
    let expected = browser.eval(every).as_u64().unwrap() - browser.eval(hidden).as_u64().unwrap();
    assert!(met.len() as u64 >= expected, "{} of {expected}: {met:?}", met.len());
    for kind in ["a", "button", "input", "select", "summary", "div"] {
        assert!(met.iter().any(|it| it == kind), "{kind}: {met:?}");
    }

    browser.eval("document.querySelector('.skip').focus()");
    browser.press("Enter", 13);
    assert_eq!(browser.eval("document.activeElement.id"), "main");
    browser.eval("document.querySelector('#objects summary').focus()");
    browser.press("Enter", 13);
    assert_eq!(browser.eval("document.querySelector('#objects details').open"), true);
}

#[test]
fn contrast_is_enough_in_light_and_dark() {
    let Some(browser) = Browser::start() else { return };
    for (name, state) in fixtures::all() {
        let server = Server::start(state);
        for scheme in ["light", "dark"] {
            browser.prefer(scheme);
            open(&browser, &server.url());
            let found = browser.eval(include_str!("page_browser/contrast.js"));
            assert_eq!(found["bad"], json!([]), "{name}, {scheme}");
            assert!(found["looked"].as_u64().unwrap() > 30, "{name}: {found}");
        }
        let back = browser.eval("getComputedStyle(document.body).backgroundColor");
        assert_eq!(back, "rgb(20, 23, 27)", "dark is dark");
    }
}

#[test]
fn a_phone_shows_it_without_scrolling_sideways() {
    let Some(browser) = Browser::start() else { return };
    browser.resize(360, 740, true);
    for (name, state) in fixtures::all() {
        let server = Server::start(state);
        open(&browser, &server.url());
        browser.eval("document.querySelectorAll('details').forEach(it => it.open = true)");
        assert_eq!(browser.eval("document.documentElement.scrollWidth"), 360, "{name}");
        let is_whole =
            "[...document.querySelectorAll('#pods .scroll')].every(it => it.scrollWidth <= it.clientWidth)";
        assert_eq!(browser.eval(is_whole), true, "{name}: nothing of the pods is cut off");
    }
}

#[test]
fn without_scripts_the_page_says_where_the_state_is() {
    let Some(browser) = Browser::start() else { return };
    browser.call("Emulation.setScriptExecutionDisabled", json!({"value": true}));
    let server = Server::start(fixtures::bypassing());
    browser.open(&server.url());
    let shown = browser.eval("document.body.innerText");
    let shown = shown.as_str().unwrap();
    let note = "This page needs JavaScript. Without it, use /debug/state, or the commands of install-cni.";
    assert!(kit::has_line(shown, note), "{shown}");
    assert!(shown.split_whitespace().all(|word| word != "Pause"), "{shown}");
    assert_eq!(complaints(&browser, &server), Vec::<Value>::new());
}

#[test]
fn a_screenshot_can_be_taken() {
    let Some(browser) = Browser::start() else { return };
    let server = Server::start(picture::pictured());
    browser.resize(1180, 1160, false);
    browser.prefer("light");
    open(&browser, &server.url());
    let shot = browser.call("Page.captureScreenshot", json!({"format": "png"}));
    let png = STANDARD.decode(shot["data"].as_str().unwrap()).unwrap();
    assert!(png.starts_with(b"\x89PNG") && (20_000..200_000).contains(&png.len()), "{} bytes", png.len());
    if std::env::var_os("MILLRACE_UPDATE_SCREENSHOT").is_some() {
        std::fs::write(picture::path(), png).unwrap();
        let digest = picture::digest();
        std::fs::write(picture::digest_path(), digest).unwrap();
    }
}

#[test]
fn the_page_of_a_running_agent_shows_a_drift_that_somebody_causes() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let web = fixture.pod(MESH, "web");
    fixture.settle();
    let node = fixture.node.netns();
    // In the node's namespace, where the agent listens on 127.0.0.1.
    let Some(browser) = node.run(Browser::start) else { return };
    open(&browser, "http://127.0.0.1:9876/");
    let row = format!("document.getElementById('pod/{MESH}/web')");
    browser.until(&format!("{row}.dataset.state === 'captured'"));
    browser.until("document.getElementById('headline-words').textContent.includes('captured')");
    // The agent restores it within seconds, and the page polls every five: so the damage is repeated until the page shows it.
    let ip = web.ip(false);
    let shown = [
        format!("{row}.dataset.state === 'bypassing'"),
        "document.getElementById('headline-words').textContent.includes('bypass')".to_owned(),
        format!("{row}.textContent.includes('{ip} is not in the set')"),
    ];
    browser.until_while(&shown.join(" && "), || {
        drop(node.sh(&format!("ipset -exist del ztunnel-pods-ips {ip}")));
    });
    fixture.settle();
    browser.until(&format!("{row}.dataset.state === 'captured'"));
}
