use super::*;

fn parse(text: &str) -> Json {
    Json::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn string(text: &str) -> Json {
    Json::String(text.to_owned())
}

#[test]
fn every_kind_of_value_is_read() {
    let object = parse(" {\"b\" : [ 1 ,\t\"x\" , null ],\r\n\"a\":{ }, \"c\":true,\"d\":false,\"\":[] } \n");
    let list = object.get("b").and_then(Json::as_list).unwrap();
    assert_eq!(list, [Json::Number("1".to_owned()), string("x"), Json::Null]);
    assert_eq!(object.get("a"), Some(&Json::Object(JsonMembers::new())));
    assert_eq!((object.get("c"), object.get("d")), (Some(&Json::Bool(true)), Some(&Json::Bool(false))));
    assert_eq!(object.get(""), Some(&Json::List(Vec::new())));
    assert_eq!((object.get("C"), Json::Null.get("c")), (None, None));
    assert_eq!(parse("true"), Json::Bool(true));
}

#[test]
fn numbers_keep_their_text() {
    for text in
        ["0", "-0", "1.10", "1E5", "1e+05", "1e-400", "1e400", "12345678901234567890", "-0.0e0", "100.00"]
    {
        assert_eq!(parse(text), Json::Number(text.to_owned()));
        assert_eq!(parse(&format!("[{text} ]")).to_go_text(), format!("[\n  {text}\n]\n"));
    }
    assert_ne!(parse("1"), parse("1.0"));
}

#[test]
fn of_two_members_with_one_key_the_last_counts() {
    assert_eq!(parse(r#"{"a":{"x":1},"b":0,"\u0061":2}"#), parse(r#"{"a":2,"b":0}"#));
}

#[test]
fn strings_are_decoded_as_by_go() {
    for (text, decoded) in [
        (r#""""#, ""),
        (r#""\"\\\/\b\f\n\r\t""#, "\"\\/\u{8}\u{c}\n\r\t"),
        (r#""\u00e4\u00E4ä""#, "äää"),
        (r#""\u0000""#, "\0"),
        (r#""\ud83d\ude00""#, "😀"),
        (r#""\ud83d""#, "\u{fffd}"),
        (r#""\ude00\uD83D""#, "\u{fffd}\u{fffd}"),
        (r#""\ud83dA""#, "\u{fffd}A"),
        (r#""\ud83d\u0041\n""#, "\u{fffd}A\n"),
        (r#""\ud83d\ud83d\ude00""#, "\u{fffd}😀"),
        (r#""\\ud83d\ud83d""#, "\\ud83d\u{fffd}"),
        ("\"\u{7f}\u{2028}\"", "\u{7f}\u{2028}"),
    ] {
        assert_eq!(parse(text), string(decoded), "{text}");
    }
}

#[test]
fn what_is_no_json_is_refused_with_its_place() {
    for (text, line, column, what) in [
        ("", 1, 1, "EOF while parsing a value"),
        ("\n \n", 3, 1, "EOF while parsing a value"),
        ("{", 1, 1, "EOF while parsing an object"),
        ("{\n  \"a\": 1,\n}", 3, 1, "key must be a string"),
        ("{a:1}", 1, 2, "key must be a string"),
        (r#"{"ä" 1}"#, 1, 6, "expected `:`"),
        (r#"{"a":1 "b":2}"#, 1, 8, "expected `,` or `}`"),
        (r#"{"a":}"#, 1, 6, "expected value"),
        ("[1,]", 1, 4, "expected value"),
        ("[1 2]", 1, 4, "expected `,` or `]`"),
        ("[1", 1, 2, "EOF while parsing a list"),
        ("{}x", 1, 3, "trailing characters"),
        ("{}\0", 1, 3, "trailing characters"),
        ("nulll", 1, 5, "trailing characters"),
        ("NaN", 1, 1, "expected value"),
        ("// x\n{}", 1, 1, "expected value"),
        ("01", 1, 2, "invalid number"),
        ("+1", 1, 1, "expected value"),
        ("1.", 1, 2, "invalid number"),
        ("\"a", 1, 2, "EOF while parsing a string"),
        ("\"a\nb\"", 1, 2, "control character"),
        (r#""\x""#, 1, 3, "invalid escape"),
        ("{\n\"a\": [1,\n  {\"b\": \"ä\\ud83d\\q\"}]}", 3, 18, "invalid escape"),
        ("\u{a0}1", 1, 1, "expected value"),
        ("\u{feff}{}", 1, 1, "a byte order mark"),
    ] {
        let error = Json::parse(text.as_bytes()).expect_err(text);
        assert_eq!((error.line, error.column), (line, column), "{text}: {error}");
        assert!(error.to_string().contains(what), "{text}: {error}");
    }
}

#[test]
fn bytes_that_are_no_utf8_are_refused_with_their_place() {
    let error = Json::parse(b"{\n\"\xc3\xa4\xff\": 1}").unwrap_err();
    assert_eq!(error.to_string(), "line 2, column 3: these bytes are not UTF-8");
    assert_eq!(Json::as_runtimes_read(b"\"\xff\""), Ok(string("\u{fffd}")));
}

#[test]
fn nesting_is_bounded() {
    let nested = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    let deepest = parse(&nested(Json::MAX_DEPTH));
    assert_eq!(deepest.nesting_depth(), Json::MAX_DEPTH);
    let error = Json::parse(nested(Json::MAX_DEPTH + 1).as_bytes()).unwrap_err();
    assert_eq!((error.line, error.column), (1, Json::MAX_DEPTH + 1), "{error}");
    assert!(error.to_string().ends_with("nested deeper than 128 levels"), "{error}");
    for open in ["[", "{\"a\":"] {
        assert!(Json::parse(open.repeat(2_000_000).as_bytes()).is_err());
    }
    // Closed brackets do not count.
    let many = format!("[{}[]]", "[{}],".repeat(1000));
    assert_eq!(parse(&many).nesting_depth(), 3);
}

#[test]
fn texts_look_like_those_of_go() {
    for (text, printed) in [
        ("{}", "{}\n"),
        ("[ ]", "[]\n"),
        ("null", "null\n"),
        (r#"[[],{},[{}]]"#, "[\n  [],\n  {},\n  [\n    {}\n  ]\n]\n"),
        (
            r#"{"b":false,"a":true,"B":null,"ä":1,"a\"":2}"#,
            "{\n  \"B\": null,\n  \"a\": true,\n  \"a\\\"\": 2,\n  \"b\": false,\n  \"ä\": 1\n}\n",
        ),
        (r#"{"<k>":"<&>"}"#, "{\n  \"\\u003ck\\u003e\": \"\\u003c\\u0026\\u003e\"\n}\n"),
        (
            r#""\u0000\b\t\n\u000b\f\r\u001f \"\\\/'\u007f\u0080""#,
            "\"\\u0000\\u0008\\t\\n\\u000b\\u000c\\r\\u001f \\\"\\\\/'\u{7f}\u{80}\"\n",
        ),
        ("\"\u{2027}\u{2028}\u{2029}\u{202a}😀\u{fffd}\"", "\"\u{2027}\\u2028\\u2029\u{202a}😀\u{fffd}\"\n"),
    ] {
        assert_eq!(parse(text).to_go_text(), printed, "{text}");
    }
}

#[test]
fn keys_are_sorted_by_their_bytes() {
    // Sorted by UTF-16 units, the order would be the reverse.
    let text = parse("{\"\u{1f600}\":1,\"\u{ffff}\":2}").to_go_text();
    assert!(text.find('\u{ffff}') < text.find('\u{1f600}'), "{text}");
}

#[test]
fn fields_are_found_as_by_go() {
    for (text, found) in [
        (r#"{"type":"a"}"#, Some("a")),
        (r#"{"TYPE":"a"}"#, Some("a")),
        (r#"{"TYPE":"b","type":"a","typE":"c"}"#, Some("a")),
        (r#"{"type":null,"Type":"b"}"#, Some("b")),
        (r#"{"type":""}"#, None),
        (r#"{"type":5}"#, None),
        (r#"{"types":"a"}"#, None),
    ] {
        let document = parse(text);
        assert_eq!(field_text(document.as_object().unwrap(), "type"), found, "{text}");
    }
}
