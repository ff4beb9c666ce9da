//! A PromQL expression, compared with the exported metrics.

use std::collections::BTreeSet;

use promql_parser::label::{MatchOp, Matcher};
use promql_parser::parser::{self, AggregateExpr, BinaryExpr, Call, Expr, LabelModifier, VectorSelector};

use super::catalogue::Catalogue;

/// Labels of a result.
pub(super) type Labels = BTreeSet<String>;

/// Label that Prometheus adds to each target.
const INSTANCE: &str = "instance";
/// Label that the chart's PodMonitor adds to each target.
const NODE: &str = "node";

/// Labels of the expression's result; an error describes its fault.
pub(super) fn check(text: &str, catalogue: &Catalogue) -> Result<Labels, String> {
    let text = text.replace("$__rate_interval", "5m").replace("$instance", ".*");
    let parsed = parser::parse(&text)?;
    labels(&parsed, catalogue)
}

fn labels(expr: &Expr, catalogue: &Catalogue) -> Result<Labels, String> {
    match expr {
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) => Ok(Labels::new()),
        Expr::Paren(inner) => labels(&inner.expr, catalogue),
        Expr::Unary(inner) => labels(&inner.expr, catalogue),
        Expr::VectorSelector(selector) => selected(selector, catalogue),
        Expr::MatrixSelector(selector) => selected(&selector.vs, catalogue),
        Expr::Aggregate(aggregate) => aggregated(aggregate, catalogue),
        Expr::Binary(binary) => joined(binary, catalogue),
        Expr::Call(call) => called(call, catalogue),
        other => Err(format!("nobody checks {other}")),
    }
}

fn selected(selector: &VectorSelector, catalogue: &Catalogue) -> Result<Labels, String> {
    let name = selector.name.as_deref().ok_or("a selector without a metric")?;
    let known = catalogue.get(name).ok_or_else(|| format!("nobody exports {name}"))?;
    for matcher in &selector.matchers.matchers {
        if [INSTANCE, NODE].contains(&matcher.name.as_str()) {
            continue;
        }
        let values =
            known.get(&matcher.name).ok_or_else(|| format!("{name} has no label {}", matcher.name))?;
        if let Some(never) = alternatives(matcher).into_iter().find(|value| !values.contains(value)) {
            return Err(format!("{} of {name} is never {never:?}, but {values:?}", matcher.name));
        }
    }
    Ok(known.keys().cloned().chain([INSTANCE, NODE].map(str::to_owned)).collect())
}

/// Each value that a matcher names.
fn alternatives(matcher: &Matcher) -> Vec<String> {
    match &matcher.op {
        MatchOp::Equal | MatchOp::NotEqual => vec![matcher.value.clone()],
        MatchOp::Re(_) | MatchOp::NotRe(_) => matcher.value.split('|').map(str::to_owned).collect(),
    }
}

fn has_all(from: &Labels, wanted: &[String], what: &str) -> Result<(), String> {
    let missing = wanted.iter().find(|label| !from.contains(*label));
    missing.map_or(Ok(()), |label| Err(format!("{what} {label}, which is not there: {from:?}")))
}

fn aggregated(aggregate: &AggregateExpr, catalogue: &Catalogue) -> Result<Labels, String> {
    let inner = labels(&aggregate.expr, catalogue)?;
    match &aggregate.modifier {
        None => Ok(Labels::new()),
        Some(LabelModifier::Include(by)) => {
            has_all(&inner, &by.labels, "aggregated by")?;
            Ok(by.labels.iter().cloned().collect())
        }
        Some(LabelModifier::Exclude(_)) => Err("`without` keeps labels that nobody named".to_owned()),
    }
}

fn joined(binary: &BinaryExpr, catalogue: &Catalogue) -> Result<Labels, String> {
    let (left, right) = (labels(&binary.lhs, catalogue)?, labels(&binary.rhs, catalogue)?);
    let matching = binary.modifier.as_ref().and_then(|modifier| modifier.matching.as_ref());
    match matching {
        Some(on) => {
            has_all(&left, &on.labels().labels, "joined on")?;
            has_all(&right, &on.labels().labels, "joined on")?;
        }
        // A number, or `vector(0)`, has no labels.
        None if right.is_empty() || left.is_empty() || left == right => {}
        None => return Err(format!("{left:?} never matches {right:?}: {binary}")),
    }
    Ok(left)
}

fn called(call: &Call, catalogue: &Catalogue) -> Result<Labels, String> {
    let mut all = Labels::new();
    for argument in &call.args.args {
        all.extend(labels(argument, catalogue)?);
        counts(call.func.name, argument)?;
    }
    match call.func.name {
        "absent" => Ok(Labels::new()),
        "histogram_quantile" if !all.remove("le") => Err(format!("no buckets: {call}")),
        _ => Ok(all),
    }
}

/// Only counters have a rate.
fn counts(function: &str, argument: &Expr) -> Result<(), String> {
    let Expr::MatrixSelector(selector) = argument else { return Ok(()) };
    let name = selector.vs.name.as_deref().unwrap_or_default();
    let counts = ["_total", "_bucket", "_count", "_sum"].iter().any(|suffix| name.ends_with(suffix));
    let wants = matches!(function, "rate" | "increase" | "irate");
    if wants == counts { Ok(()) } else { Err(format!("{function} of {name}")) }
}

fn small() -> Catalogue {
    let values = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<BTreeSet<_>>();
    Catalogue::from([
        ("up_total".to_owned(), [("result".to_owned(), values(&["ok", "bad"]))].into()),
        ("took_bucket".to_owned(), [("le".to_owned(), values(&["1", "+Inf"]))].into()),
        ("ready".to_owned(), [].into()),
    ])
}

#[test]
fn what_cannot_be_evaluated_is_found() {
    for (text, trouble) in [
        ("rate(up_total[5m]", "unclosed"),
        ("rate(down_total[5m])", "nobody exports down_total"),
        (r#"rate(up_total{outcome="ok"}[5m])"#, "no label outcome"),
        (r#"rate(up_total{result="good"}[5m])"#, "never \"good\""),
        (r#"rate(up_total{result!~"ok|good"}[5m])"#, "never \"good\""),
        ("sum by (kind) (rate(up_total[5m]))", "aggregated by kind"),
        ("sum by (result) (sum by (instance) (rate(up_total[5m])))", "aggregated by result"),
        ("rate(ready[5m])", "rate of ready"),
        ("histogram_quantile(0.9, sum by (instance) (rate(took_bucket[5m])))", "no buckets"),
        ("ready and on (result) ready", "joined on result"),
        ("ready and rate(up_total[5m])", "never matches"),
        ("sum without (result) (rate(up_total[5m]))", "without"),
    ] {
        let said = check(text, &small()).unwrap_err();
        assert!(said.contains(trouble), "{text}: {said}");
    }
}

#[test]
fn what_can_be_evaluated_has_the_labels_that_are_left() {
    for (text, expected) in [
        (
            r#"sum by (instance) (rate(up_total{result!="ok", instance=~"$instance"}[$__rate_interval])) > 0"#,
            &[INSTANCE][..],
        ),
        ("histogram_quantile(0.9, sum by (instance, le) (rate(took_bucket[5m])))", &[INSTANCE]),
        ("absent(ready)", &[]),
        ("count(ready == 0) or vector(0)", &[]),
        (r#"increase(up_total{result=~"ok|bad"}[5m])"#, &[INSTANCE, NODE, "result"]),
        ("rate(up_total[5m]) and on (instance) ready", &[INSTANCE, NODE, "result"]),
    ] {
        let labels = check(text, &small()).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(labels.iter().map(String::as_str).collect::<Vec<_>>(), expected, "{text}");
    }
}
