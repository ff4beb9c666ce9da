use proptest::prelude::*;
use saphyr_parser::{Event, Parser, ScalarStyle, StrInput};
use serde_json::{Map, Value, json};

use super::to_yaml;

/// A reader's interpretation of a document.
fn read(text: &str) -> Value {
    let mut parser = Parser::new_from_str(text);
    let mut root = None;
    while let Some(event) = parser.next_event() {
        match event.unwrap_or_else(|error| panic!("{error}: {text}")).0 {
            Event::Nothing
            | Event::StreamStart
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::StreamEnd => {}
            event => {
                assert!(root.is_none(), "one document: {text}");
                root = Some(node(event, &mut parser));
            }
        }
    }
    root.expect("a document")
}

fn node<'t>(event: Event<'t>, parser: &mut Parser<'t, StrInput<'t>>) -> Value {
    match event {
        Event::Scalar(text, ScalarStyle::Plain, ..) => resolved(&text),
        Event::Scalar(text, ..) => Value::String(text.into_owned()),
        Event::SequenceStart(..) => {
            let mut list = Vec::new();
            loop {
                match parser.next_event().unwrap().unwrap().0 {
                    Event::SequenceEnd => return Value::Array(list),
                    event => list.push(node(event, parser)),
                }
            }
        }
        Event::MappingStart(..) => {
            let mut map = Map::new();
            loop {
                let key = match parser.next_event().unwrap().unwrap().0 {
                    Event::MappingEnd => return Value::Object(map),
                    Event::Scalar(text, style, ..) => {
                        assert!(style != ScalarStyle::Plain || resolved(&text).is_string(), "key {text}");
                        text.into_owned()
                    }
                    other => panic!("a key: {other:?}"),
                };
                let event = parser.next_event().unwrap().unwrap().0;
                map.insert(key, node(event, parser));
            }
        }
        other => panic!("{other:?}"),
    }
}

/// A plain scalar, interpreted as liberally as any reader does.
fn resolved(text: &str) -> Value {
    let word = text.to_lowercase();
    if let "yes" | "no" | "on" | "off" | "y" | "n" | "~" | "" | ".nan" | ".inf" | "-.inf" = word.as_str() {
        return Value::Null;
    }
    // null, true, false, and numbers are as in JSON, which may round the last digit of a float differently.
    let read = serde_json::from_str(&word);
    let read =
        read.map(|value: Value| if value.is_f64() { json!(word.parse::<f64>().unwrap()) } else { value });
    read.unwrap_or_else(|_| if is_numeric(&word) { Value::Null } else { Value::String(text.to_owned()) })
}

/// A number, a time or a date in any version of YAML.
fn is_numeric(word: &str) -> bool {
    let digits = word.trim_start_matches(['+', '-']).replace('_', "");
    let radix = |prefix, radix| {
        let rest = digits.strip_prefix(prefix);
        rest.is_some_and(|rest: &str| !rest.is_empty() && rest.chars().all(|c| c.is_digit(radix)))
    };
    let has_digit = digits.contains(|c: char| c.is_ascii_digit());
    let time =
        has_digit && digits.contains(':') && digits.chars().all(|c| c.is_ascii_digit() || ":.".contains(c));
    let date = has_digit && digits.len() >= 8 && digits.chars().all(|c| c.is_ascii_digit() || c == '-');
    digits.parse::<f64>().is_ok() || radix("0x", 16) || radix("0o", 8) || radix("0b", 2) || time || date
}

fn value() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        any::<String>(),
        "[ -~]{0,12}",
        "(yes|No|on|OFF|null|Null|~|true|0x1f|1e3|12:30:45|2026-11-21|\\.inf|y|- a|a: b|a #b|\\? x|%YAML|---|\\.\\.\\.|&a|\\*a|!t|\\||>|@x|`x) ?",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(|number| json!(number)),
        any::<f64>().prop_filter("finite", |number| number.is_finite()).prop_map(|number| json!(number)),
        text.clone().prop_map(Value::String),
    ];
    leaf.prop_recursive(4, 32, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map(text.clone(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn a_reader_gets_the_same_back(value in value()) {
        let text = to_yaml(&value);
        let back = read(&text);
        prop_assert_eq!(back.to_string(), value.to_string(), "{}", text);
    }
}

#[test]
fn it_reads_well() {
    let value = json!({
        "list": [{"name": "web", "ips": ["10.0.0.7"], "none": []}, [1, [2]], "x"],
        "empty": {}, "words": "its namespace is labelled a=b", "plain": "node agent", "yes": "no", "n": null, "t": "a\nb",
    });
    let expected = "\
empty: {}
list:
- ips:
  - \"10.0.0.7\"
  name: web
  none: []
- - 1
  - - 2
- x
\"n\": null
plain: node agent
t: |-
  a
  b
words: its namespace is labelled a=b
\"yes\": \"no\"
";
    assert_eq!(to_yaml(&value), expected);
    assert_eq!(to_yaml(&json!([])), "[]\n");
    assert_eq!(to_yaml(&json!("~")), "\"~\"\n");
}
