//! The document as a tree that faults can be taken out of, and its `serde` deserializer.

use super::{
    fault::{Fault, Segment},
    filling::{FILLINGS, Filling},
};
use crate::finding::shortened;
use serde::{
    Deserializer,
    de::{
        DeserializeSeed, EnumAccess, Error, MapAccess, SeqAccess, Unexpected, VariantAccess,
        Visitor, value::BorrowedStrDeserializer,
    },
};
use serde_json::{Number, Value};

/// A value of the document, or what stands in its place.
#[derive(Debug)]
pub(super) enum Node {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
    /// Reported and taken out. It keeps its place, so that paths of others stay right.
    Removed,
    /// In place of a required field that is missing: answers whatever is asked for, by the
    /// n-th way of [`FILLINGS`].
    Filler(usize),
}

impl From<Value> for Node {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(value),
            Value::Number(value) => Self::Number(value),
            Value::String(value) => Self::Text(value),
            Value::Array(items) => Self::List(items.into_iter().map(Self::from).collect()),
            Value::Object(fields) => Self::Map(
                fields
                    .into_iter()
                    .map(|(key, value)| (key, value.into()))
                    .collect(),
            ),
        }
    }
}

impl Node {
    /// The node at a path; `None` where the path leads nowhere or into a [`Node::Filler`].
    pub(super) fn at(&mut self, path: &[Segment]) -> Option<&mut Self> {
        path.iter()
            .try_fold(self, |node, segment| match (node, segment) {
                (Self::List(items), Segment::Item(index)) => items.get_mut(*index),
                (Self::Map(entries), Segment::Field(field)) => entries
                    .iter_mut()
                    .find(|(key, _)| key == field)
                    .map(|(_, node)| node),
                _ => None,
            })
    }
    /// The entry of a map.
    pub(super) fn entry(&mut self, field: &str) -> Option<&mut Self> {
        match self {
            Self::Map(entries) => entries
                .iter_mut()
                .find(|(key, _)| key == field)
                .map(|(_, node)| node),
            _ => None,
        }
    }
    /// The entry of a map, to look at.
    pub(super) fn child(&self, field: &str) -> Option<&Self> {
        match self {
            Self::Map(entries) => entries
                .iter()
                .find(|(key, _)| key == field)
                .map(|(_, node)| node),
            _ => None,
        }
    }

    /// Fills in something else, where the type did not take what was filled in before;
    /// `false` when there is nothing else, or this is no filling.
    pub(super) const fn fill_otherwise(&mut self) -> bool {
        match self {
            Self::Filler(way) if *way + 1 < FILLINGS.len() => {
                *way += 1;
                true
            }
            _ => false,
        }
    }

    /// The value as a person would write it, shortened. Of lists and maps only the shape, as
    /// a secret may be within.
    pub(super) fn written(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Number(number) => number.to_string(),
            Self::Text(text) if reads_back(text) => shortened(text),
            Self::Text(text) => shortened(&Value::from(text.as_str()).to_string()),
            Self::List(items) => format!("(a list of {})", items.len()),
            Self::Map(entries) => {
                let keys: Vec<_> = entries.iter().map(|(key, _)| key.as_str()).collect();
                shortened(&format!("{{{}}}", keys.join(", ")))
            }
            Self::Removed | Self::Filler(_) => String::new(),
        }
    }
}

/// Whether a text, written without quotes, is read as the same text again.
fn reads_back(text: &str) -> bool {
    const WORDS: [&str; 11] = [
        "true", "false", "yes", "no", "on", "off", "y", "n", "null", "~", ".nan",
    ];
    !text.is_empty()
        && text.trim() == text
        && !text.contains(char::is_control)
        && text.parse::<f64>().is_err()
        && !WORDS.contains(&text.to_ascii_lowercase().as_str())
}

/// Forwards the calls that only hint at a type; a [`Node::Filler`] answers the hint.
macro_rules! hinted {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
            match self {
                Node::Filler(way) => Filling::of(*way).$method(visitor),
                _ => self.deserialize_any(visitor),
            }
        })*
    };
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self {
            Node::Null | Node::Removed => visitor.visit_unit(),
            Node::Bool(value) => visitor.visit_bool(*value),
            Node::Number(number) => {
                if let Some(value) = number.as_u64() {
                    visitor.visit_u64(value)
                } else if let Some(value) = number.as_i64() {
                    visitor.visit_i64(value)
                } else {
                    visitor.visit_f64(number.as_f64().unwrap_or(f64::INFINITY))
                }
            }
            Node::Text(text) => visitor.visit_borrowed_str(text),
            Node::List(items) => visitor.visit_seq(Items::new(items)),
            Node::Map(entries) => visitor.visit_map(Fields::new(entries, &[])),
            Node::Filler(way) => Filling::of(*way).deserialize_any(visitor),
        }
    }

    hinted! {
        deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_f32
        deserialize_f64 deserialize_char deserialize_str deserialize_string deserialize_bytes
        deserialize_byte_buf deserialize_unit deserialize_seq deserialize_map
        deserialize_identifier deserialize_ignored_any
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self {
            Node::Null | Node::Removed | Node::Filler(_) => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        _length: usize,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _length: usize,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match self {
            Node::Map(entries) => visitor.visit_map(Fields::new(entries, fields)),
            Node::Filler(way) => Filling::of(*way).deserialize_struct(name, fields, visitor),
            // A derived visitor would take a list's items for the fields, in order.
            Node::List(_) => Err(Fault::invalid_type(Unexpected::Seq, &visitor)),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match self {
            Node::Text(variant) => visitor.visit_enum(Choice {
                variant,
                content: None,
            }),
            Node::Map(entries) => {
                let mut written = entries
                    .iter()
                    .filter(|(_, node)| !matches!(node, Node::Removed));
                match (written.next(), written.count()) {
                    (Some((variant, content)), 0) => visitor.visit_enum(Choice {
                        variant,
                        content: Some(content),
                    }),
                    (None, _) if entries.is_empty() => Err(Fault::variants(0, variants)),
                    // Its choice was reported and taken out.
                    (None, _) => Filling::of(0).deserialize_enum(name, variants, visitor),
                    (Some(_), more) => Err(Fault::variants(1 + more, variants)),
                }
            }
            Node::Filler(way) => Filling::of(*way).deserialize_enum(name, variants, visitor),
            _ => Err(Fault::variants(0, variants)),
        }
    }
}

/// The items of a list, by their place as written.
pub(super) struct Items<'de> {
    items: &'de [Node],
    next: usize,
}

impl<'de> Items<'de> {
    pub(super) fn new(items: &'de [Node]) -> Self {
        Self { items, next: 0 }
    }
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Fault> {
        while let Some(item) = self.items.get(self.next) {
            let index = self.next;
            self.next += 1;
            if !matches!(item, Node::Removed) {
                return seed
                    .deserialize(item)
                    .map(Some)
                    .map_err(|fault| fault.within_item(index));
            }
        }
        Ok(None)
    }
}

/// The entries of a map.
pub(super) struct Fields<'de> {
    entries: std::slice::Iter<'de, (String, Node)>,
    /// Of these, one without a value counts as not written.
    optional: &'static [&'static str],
    value: Option<&'de (String, Node)>,
}

impl<'de> Fields<'de> {
    pub(super) fn new(entries: &'de [(String, Node)], optional: &'static [&'static str]) -> Self {
        Self {
            entries: entries.iter(),
            optional,
            value: None,
        }
    }
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        let optional = self.optional;
        self.value = self.entries.find(|(key, node)| match node {
            Node::Removed => false,
            Node::Null => !optional.contains(&key.as_str()),
            _ => true,
        });
        match self.value {
            Some((key, _)) => seed
                .deserialize(BorrowedStrDeserializer::<Fault>::new(key))
                .map(Some),
            None => Ok(None),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        match self.value.take() {
            Some((key, node)) => seed
                .deserialize(node)
                .map_err(|fault| fault.within_field(key)),
            None => Err(Fault::custom("a value was asked for before its key")),
        }
    }
}

/// One variant of an enum: a bare word, or the one key of a map.
struct Choice<'de> {
    variant: &'de str,
    content: Option<&'de Node>,
}

impl<'de> EnumAccess<'de> for Choice<'de> {
    type Error = Fault;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Fault> {
        match seed.deserialize(BorrowedStrDeserializer::<Fault>::new(self.variant)) {
            Ok(variant) => Ok((variant, self)),
            Err(fault) if self.content.is_some() => Err(fault.keyed()),
            Err(fault) => Err(fault),
        }
    }
}

impl<'de> Choice<'de> {
    fn content<T>(self, read: impl FnOnce(&'de Node) -> Result<T, Fault>) -> Result<T, Fault> {
        match self.content {
            Some(node) => read(node).map_err(|fault| fault.within_field(self.variant)),
            None => Err(Fault::bare_variant(self.variant)),
        }
    }
}

impl<'de> VariantAccess<'de> for Choice<'de> {
    type Error = Fault;

    fn unit_variant(self) -> Result<(), Fault> {
        match self.content {
            None => Ok(()),
            Some(_) => self.content(<() as serde::Deserialize>::deserialize),
        }
    }
    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Fault> {
        self.content(|node| seed.deserialize(node))
    }
    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Fault> {
        self.content(|node| node.deserialize_tuple(length, visitor))
    }
    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.content(|node| node.deserialize_struct("", fields, visitor))
    }
}
