//! YAML parsed to JSON values, from the events of a small parser: the part of YAML 1.2 used by kubeconfigs and manifests, without
//! aliases, which could expand a small text to a large tree.

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Number, Value};

/// Maximum depth, more than any kubeconfig or manifest has; bounds the recursion.
const MAX_DEPTH: usize = 64;

/// Parses all documents of a text; empty ones are null.
///
/// # Errors
/// A message for people, which contains no values.
pub fn parse_yaml(text: &str) -> Result<Vec<Value>, String> {
    let mut events = YamlEvents(Parser::new_from_str(text));
    let mut documents = Vec::new();
    loop {
        match events.next_event()? {
            Event::StreamEnd => return Ok(documents),
            Event::Nothing | Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd => {}
            event => documents.push(events.read_value(event, 0)?),
        }
    }
}

struct YamlEvents<'t>(Parser<'t, saphyr_parser::StrInput<'t>>);

impl<'t> YamlEvents<'t> {
    fn next_event(&mut self) -> Result<Event<'t>, String> {
        match self.0.next_event() {
            Some(Ok((event, _))) => Ok(event),
            Some(Err(error)) => {
                let at = error.marker();
                Err(format!("line {}, column {}: {}", at.line(), at.col() + 1, error.info()))
            }
            None => Ok(Event::StreamEnd),
        }
    }

    fn read_value(&mut self, event: Event<'t>, depth: usize) -> Result<Value, String> {
        if depth > MAX_DEPTH {
            return Err("it is nested too deep".to_owned());
        }
        match event {
            Event::Scalar(text, ScalarStyle::Plain, _, None) => Ok(plain_scalar(&text)),
            Event::Scalar(text, ..) => Ok(Value::String(text.into_owned())),
            Event::SequenceStart(..) => self.read_list(depth),
            Event::MappingStart(..) => self.read_map(depth),
            Event::Alias(_) => Err("it has an alias, which is not supported here".to_owned()),
            _ => Err("it ends too early".to_owned()),
        }
    }

    fn read_list(&mut self, depth: usize) -> Result<Value, String> {
        let mut list = Vec::new();
        loop {
            match self.next_event()? {
                Event::SequenceEnd => return Ok(Value::Array(list)),
                event => list.push(self.read_value(event, depth + 1)?),
            }
        }
    }

    fn read_map(&mut self, depth: usize) -> Result<Value, String> {
        let mut map = Map::new();
        loop {
            let key = match self.next_event()? {
                Event::MappingEnd => return Ok(Value::Object(map)),
                Event::Scalar(text, ..) => text.into_owned(),
                _ => return Err("it has a key that is not a string".to_owned()),
            };
            let event = self.next_event()?;
            let value = self.read_value(event, depth + 1)?;
            if map.insert(key.clone(), value).is_some() {
                return Err(format!("it has the key {key:?} twice in one map"));
            }
        }
    }
}

/// Parses an unquoted scalar by the core schema of YAML 1.2; numbers as in JSON, decimal only.
fn plain_scalar(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => parse_number(text).map_or_else(|| Value::String(text.to_owned()), Value::Number),
    }
}

fn parse_number(text: &str) -> Option<Number> {
    text.parse::<i64>().map(Number::from).or_else(|_| serde_json::from_str(text)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn documents_become_values() {
        let text = "# c\na: [x, 5, -1, 1.5, true, ~]\nb:\n  c: \"5\"\n  d: 'true'\n  e: !!str 5\n  f:\n---\n---\n- x\n...\n";
        let b = json!({"c": "5", "d": "true", "e": "5", "f": null});
        let first = json!({"a": ["x", 5, -1, 1.5, true, null], "b": b});
        assert_eq!(parse_yaml(text).unwrap(), [first, json!(null), json!(["x"])]);
        assert_eq!(parse_yaml("").unwrap(), Vec::<Value>::new());
        assert_eq!(parse_yaml("{\"a\": 1}").unwrap(), [json!({"a": 1})]);
    }

    #[test]
    fn texts_that_look_like_numbers_stay_texts() {
        for text in ["1.2.3", "10.0.0.1", "1e", "+", "inf", "nan", "yes", "2026-01-01T00:00:00Z", "0x10", "e"]
        {
            assert_eq!(parse_yaml(&format!("a: {text}")).unwrap(), [json!({"a": text})], "{text}");
        }
    }

    #[test]
    fn what_is_no_plain_yaml_is_refused() {
        for text in ["a: [", "a: b: c", "a: &x 1\nb: *x", "? [a]\n: b", "{\"a\":", "a: 1\na: 2"] {
            assert!(parse_yaml(text).is_err(), "{text}: {:?}", parse_yaml(text));
        }
        assert!(parse_yaml(&"[".repeat(100_000)).is_err());
        assert!(parse_yaml(&"- ".repeat(10_000)).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn no_text_panics(text in "([a-z]|[-:?,\\[\\]{}#&*!|>'\"%@` \\n\\t0-9.]|---|\\.\\.\\.|\\PC){0,60}") {
            let _ = parse_yaml(&text);
        }
    }
}
