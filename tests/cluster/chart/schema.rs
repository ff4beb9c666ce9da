//! Values that `values.schema.json` allows, generated from it.

use serde_json::{Map, Value, json};

use super::helm::{Helm, chart, each, read_yaml};

/// Number of renderings of random values.
const RANDOM: u64 = 200;
/// Minimum number of these that render; the others combine values that exclude each other.
const RENDERED: usize = 120;
/// Intended refusals of the chart.
const REFUSALS: [&str; 3] = ["millrace.admissionPolicy forbids", "needs ambient mode", "needs chained=true"];

/// The schema of the values.
pub(super) fn schema() -> Value {
    let text = std::fs::read(chart().join("values.schema.json")).unwrap();
    let whole: Value = serde_json::from_slice(&text).unwrap();
    whole["definitions"]["values"].clone()
}

/// The schema of one value.
pub(super) fn at<'a>(schema: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(schema, |node, key| {
        let found = &node["properties"][key];
        assert!(found.is_object(), "the schema lacks {path}");
        found
    })
}

/// Values of a leaf to try.
pub(super) fn candidates(node: &Value) -> Vec<Value> {
    if let Some(values) = node["examples"].as_array().or_else(|| node["enum"].as_array()) {
        return values.clone();
    }
    match first_type(node) {
        "boolean" => vec![json!(true), json!(false)],
        "integer" => {
            let least = node["minimum"].as_u64().unwrap_or(0);
            let most = node["maximum"].as_u64().unwrap_or(1000);
            vec![json!(least), json!(most), json!(least.midpoint(most))]
        }
        other => panic!("no examples for a {other}: {node}"),
    }
}

fn first_type(node: &Value) -> &str {
    node["type"].as_str().or_else(|| node["type"][0].as_str()).unwrap()
}

/// A number generator (xorshift) with the same sequence in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }

    /// Random values below a node.
    fn some(&mut self, node: &Value) -> Value {
        let mut values = Map::new();
        for (key, below) in node["properties"].as_object().unwrap() {
            let is_map = below["properties"].is_object() && below["examples"].is_null();
            if self.below(3) > 0 {
                continue;
            }
            let value = if is_map {
                self.some(below)
            } else {
                let mut all = candidates(below);
                all.swap_remove(self.below(all.len()))
            };
            values.insert(key.clone(), value);
        }
        Value::Object(values)
    }
}

/// Random values that the schema allows, which depend on the seed.
pub(super) fn random_values(schema: &Value, seed: u64) -> Value {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut values = random.some(schema);
    if random.below(4) == 0 {
        values["cni"] = random.some(schema);
    }
    values
}

fn well_formed(objects: &[Value]) {
    let mut names = Vec::new();
    for one in objects {
        let name = one["metadata"]["name"].as_str().unwrap_or_else(|| panic!("no name: {one}"));
        assert!(one["kind"].is_string() && one["apiVersion"].is_string(), "{one}");
        names.push(format!("{} {name}", one["kind"]));
    }
    let all = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), all, "an object twice: {names:?}");
}

#[test]
fn random_values_render() {
    let Some(helm) = Helm::find() else { return };
    let schema = schema();
    let outcomes = each((1..=RANDOM).collect(), |seed| {
        let values = random_values(&schema, seed);
        match helm.template_values(&values) {
            Ok(objects) => {
                well_formed(&objects);
                true
            }
            Err(complaint) => {
                assert!(REFUSALS.iter().any(|one| complaint.contains(one)), "{values}: {complaint}");
                false
            }
        }
    });
    let rendered = outcomes.iter().filter(|rendered| **rendered).count();
    assert!(rendered >= RENDERED, "only {rendered} of {} render", outcomes.len());
}

#[test]
fn every_profile_on_every_platform_renders_in_every_version() {
    let Some(helm) = Helm::find() else { return };
    let schema = schema();
    let names = |key: &str| candidates(at(&schema, key));
    let mut cases = Vec::new();
    for profile in names("profile") {
        cases.extend(
            names("platform").into_iter().map(|platform| json!({"profile": profile, "platform": platform})),
        );
    }
    for version in names("compatibilityVersion") {
        for profile in ["", "ambient"] {
            cases.push(json!({"profile": profile, "compatibilityVersion": version}));
        }
    }
    each(cases, |values| {
        let objects =
            helm.template_values(&values).unwrap_or_else(|complaint| panic!("{values}: {complaint}"));
        well_formed(&objects);
    });
}

/// The schema and the defaults name the same values.
#[test]
fn the_schema_knows_every_default() {
    fn compare(path: &str, defaults: &Value, schema: &Value) {
        let known = schema["properties"].as_object().unwrap();
        let keys: Vec<&String> = defaults.as_object().unwrap().keys().collect();
        let mut expected: Vec<&String> = known.keys().collect();
        let mut found = keys.clone();
        expected.sort();
        found.sort();
        assert_eq!(found, expected, "below {path:?}");
        for key in keys {
            if known[key]["properties"].is_object() && known[key]["examples"].is_null() {
                compare(&format!("{path}.{key}"), &defaults[key], &known[key]);
            }
        }
    }
    compare("", &read_yaml("values.yaml")["defaults"], &schema());
}
