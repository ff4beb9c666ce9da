//! YAML (and JSON) as a tree of texts, built from the events of a small parser. No anchors, no tags, one document: a
//! kubeconfig has none of them, and aliases are how a small text becomes a large tree.

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::Value;

/// Deeper than any kubeconfig; keeps the recursion small.
const MAX_DEPTH: usize = 32;
/// More nodes than any kubeconfig has.
const MAX_NODES: usize = 20_000;

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum YamlNode {
    /// A plain `null`, `~` or nothing.
    Null,
    /// Any other scalar; types do not matter here.
    Text(String),
    List(Vec<YamlNode>),
    Map(Vec<(String, YamlNode)>),
}

impl YamlNode {
    /// A node that has no members.
    pub(super) const NOTHING: YamlNode = YamlNode::Null;

    /// Parses a document; the error is for people and shows no values.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.trim_start().starts_with('{') {
            return match serde_json::from_str(text) {
                Ok(value) => Ok(from_json(value)),
                // Flow style YAML begins like this too.
                Err(_) => YamlEvents::new(text).parse_document(),
            };
        }
        YamlEvents::new(text).parse_document()
    }

    /// A member of a map; none when it is absent or null. Of several the last.
    pub(super) fn get(&self, key: &str) -> Option<&YamlNode> {
        let YamlNode::Map(members) = self else { return None };
        members
            .iter()
            .rfind(|(name, _)| name == key)
            .map(|(_, value)| value)
            .filter(|value| **value != YamlNode::Null)
    }

    /// The elements of a list; none of anything else.
    pub(super) fn elements(&self) -> &[YamlNode] {
        if let YamlNode::List(elements) = self { elements } else { &[] }
    }

    /// The text of a scalar.
    pub(super) fn scalar_text(&self) -> Option<&str> {
        if let YamlNode::Text(text) = self { Some(text) } else { None }
    }

    /// Nothing is in it.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            YamlNode::Null => true,
            YamlNode::Text(text) => text.is_empty(),
            YamlNode::List(list) => list.is_empty(),
            YamlNode::Map(map) => map.is_empty(),
        }
    }
}

fn from_json(value: Value) -> YamlNode {
    match value {
        Value::Null => YamlNode::Null,
        Value::String(text) => YamlNode::Text(text),
        Value::Array(list) => YamlNode::List(list.into_iter().map(from_json).collect()),
        Value::Object(map) => {
            YamlNode::Map(map.into_iter().map(|(key, value)| (key, from_json(value))).collect())
        }
        other => YamlNode::Text(other.to_string()),
    }
}

struct YamlEvents<'t> {
    parser: Parser<'t, saphyr_parser::StrInput<'t>>,
    nodes: usize,
}

impl<'t> YamlEvents<'t> {
    fn new(text: &'t str) -> Self {
        YamlEvents { parser: Parser::new_from_str(text), nodes: 0 }
    }

    fn parse_document(mut self) -> Result<YamlNode, String> {
        let mut root = None;
        loop {
            match self.next_event()? {
                Event::StreamEnd => return root.ok_or_else(|| "it is empty".to_owned()),
                Event::Nothing | Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd => {}
                _ if root.is_some() => return Err("it has more than one document".to_owned()),
                event => root = Some(self.parse_node(event, 0)?),
            }
        }
    }

    fn next_event(&mut self) -> Result<Event<'t>, String> {
        match self.parser.next_event() {
            Some(Ok((event, _))) => Ok(event),
            Some(Err(error)) => {
                let at = error.marker();
                Err(format!("line {}, column {}: {}", at.line(), at.col() + 1, error.info()))
            }
            None => Ok(Event::StreamEnd),
        }
    }

    fn parse_node(&mut self, event: Event<'t>, depth: usize) -> Result<YamlNode, String> {
        self.nodes += 1;
        if depth > MAX_DEPTH || self.nodes > MAX_NODES {
            return Err("it is nested too deep or has too many parts".to_owned());
        }
        match event {
            Event::Scalar(text, ScalarStyle::Plain, ..)
                if matches!(&*text, "" | "~" | "null" | "Null" | "NULL") =>
            {
                Ok(YamlNode::Null)
            }
            Event::Scalar(text, ..) => Ok(YamlNode::Text(text.into_owned())),
            Event::SequenceStart(..) => self.parse_list(depth),
            Event::MappingStart(..) => self.parse_map(depth),
            Event::Alias(_) => Err("it has an alias, which a kubeconfig needs not".to_owned()),
            _ => Err("it ends too early".to_owned()),
        }
    }

    fn parse_list(&mut self, depth: usize) -> Result<YamlNode, String> {
        let mut list = Vec::new();
        loop {
            match self.next_event()? {
                Event::SequenceEnd => return Ok(YamlNode::List(list)),
                event => list.push(self.parse_node(event, depth + 1)?),
            }
        }
    }

    fn parse_map(&mut self, depth: usize) -> Result<YamlNode, String> {
        let mut map = Vec::new();
        loop {
            let key = match self.next_event()? {
                Event::MappingEnd => return Ok(YamlNode::Map(map)),
                Event::Scalar(text, ..) => text.into_owned(),
                _ => return Err("it has a key that is no text".to_owned()),
            };
            let event = self.next_event()?;
            map.push((key, self.parse_node(event, depth + 1)?));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn yaml_and_json_give_the_same_tree() {
        let yaml = YamlNode::parse("a: [x, 5]\nb:\n  c: \"q\"\n  d: ~\n  e: 'null'\n").unwrap();
        let json =
            YamlNode::parse("{\"a\":[\"x\",5],\n\t\"b\":{\"c\":\"q\",\"d\":null,\"e\":\"null\"}}").unwrap();
        assert_eq!(yaml, json);
        assert_eq!(yaml.get("b").unwrap().get("d"), None);
    }

    #[test]
    fn what_is_no_plain_yaml_is_refused() {
        for text in
            ["", "# x\n", "a: [", "a: b: c", "a: 1\n---\nb: 2", "a: &x 1\nb: *x", "? [a]\n: b", "{\"a\":"]
        {
            assert!(YamlNode::parse(text).is_err(), "{text}: {:?}", YamlNode::parse(text));
        }
        assert!(YamlNode::parse(&"[".repeat(100_000)).is_err());
        assert!(YamlNode::parse(&"- ".repeat(10_000)).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn no_text_panics(text in "([a-z]|[-:?,\\[\\]{}#&*!|>'\"%@` \\n\\t]|---|\\.\\.\\.|\\PC){0,60}") {
            let _ = YamlNode::parse(&text);
        }

        #[test]
        fn no_string_panics(text: String) {
            let _ = YamlNode::parse(&text);
        }
    }
}
