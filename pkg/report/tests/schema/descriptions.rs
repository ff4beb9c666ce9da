//! Descriptions of the document's members: the documentation comments of the types' fields.

use std::{collections::BTreeMap, fs, path::Path};

use syn::{Attribute, Expr, Fields, GenericArgument, Item, Lit, LitStr, Meta, PathArguments, Type};

/// A member of a type of the document.
struct Field {
    name: String,
    description: String,
    /// Names of its type, from the outermost to the innermost: `Option`, `Vec`, `PodState`.
    types: Vec<String>,
}

/// Returns path and description of each member, in the order of the types' fields.
pub(crate) fn described_members() -> Vec<(String, String)> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = sources.read_dir().unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    let rust = files.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let items = rust.flat_map(|path| syn::parse_file(&fs::read_to_string(path).unwrap()).unwrap().items);
    let structs = items.filter_map(|item| match item {
        Item::Struct(found) => Some((found.ident.to_string(), parse_fields(&found.fields))),
        _ => None,
    });
    let structs: BTreeMap<String, Vec<Field>> = structs.collect();
    let mut found = Vec::new();
    add_descriptions(&structs, ("StateReport", ""), "", &mut found);
    found
}

/// Adds the members of a type, and theirs. `type_name`: the type, and the one that it is generic over.
fn add_descriptions(
    structs: &BTreeMap<String, Vec<Field>>,
    (type_name, argument): (&str, &str),
    prefix: &str,
    found: &mut Vec<(String, String)>,
) {
    for Field { name, description, types } in structs.get(type_name).into_iter().flatten() {
        let path = format!("{prefix}{name}");
        found.push((path.clone(), description.clone()));
        let mut named = types.iter().filter(|name| !["Option", "Vec"].contains(&name.as_str()));
        let inner = named.next().map_or("", |name| if name == "T" { argument } else { name.as_str() });
        let list = if types.iter().any(|name| name == "Vec") { "[]" } else { "" };
        let inner = (inner, named.next().map_or("", String::as_str));
        add_descriptions(structs, inner, &format!("{path}{list}."), found);
    }
}

fn parse_fields(fields: &Fields) -> Vec<Field> {
    let named = fields.iter().filter_map(|field| {
        let ident = field.ident.as_ref()?.to_string();
        let name = serde_name(&field.attrs).unwrap_or_else(|| camel_case(&ident));
        Some(Field { name, description: join_documentation(&field.attrs), types: type_names(&field.ty) })
    });
    named.collect()
}

fn type_names(of: &Type) -> Vec<String> {
    let Type::Path(path) = of else { return Vec::new() };
    let last = path.path.segments.last().unwrap();
    let mut names = vec![last.ident.to_string()];
    if let PathArguments::AngleBracketed(arguments) = &last.arguments
        && let Some(GenericArgument::Type(inner)) = arguments.args.first()
    {
        names.extend(type_names(inner));
    }
    names
}

/// The name of a field in JSON, if serde has another one for it.
fn serde_name(attributes: &[Attribute]) -> Option<String> {
    let mut name = None;
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
        let parsed = attribute.parse_nested_meta(|meta| {
            let value: Option<LitStr> = meta.value().ok().map(|value| value.parse()).transpose()?;
            if meta.path.is_ident("rename") {
                name = value.map(|value| value.value());
            }
            Ok(())
        });
        parsed.unwrap();
    }
    name
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap().to_owned();
    words.fold(first, |name, word| name + &word[..1].to_uppercase() + &word[1..])
}

fn join_documentation(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(doc) if doc.path.is_ident("doc") => match &doc.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value().trim().to_owned()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    });
    lines.collect::<Vec<_>>().join(" ")
}
