//! What stands in place of what is missing or was taken out, so that the rest can be read.

use super::{
    fault::Fault,
    node::{Fields, Items},
};
use serde::{
    Deserializer,
    de::{
        DeserializeSeed, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor,
        value::BorrowedStrDeserializer,
    },
};

/// What is tried, one after the other, in place of a text that is missing: a type that parses
/// its text takes one of these. None is a text that anyone would write.
pub(super) const FILLINGS: [&str; 6] = [
    "",
    "filled-in-for-a-fault",
    "0.0.0.0",
    "0.0.0.0:0",
    "0.0.0.0/0",
    "1s",
];

/// Something empty of whatever type is asked for.
#[derive(Clone, Copy)]
pub(super) struct Filling {
    /// Which of [`FILLINGS`] stands for a text.
    way: usize,
    depth: u8,
}

impl Filling {
    /// How deep required structs may lie within each other; a type that contains itself
    /// ends here.
    const MAX_DEPTH: u8 = 16;

    pub(super) const fn of(way: usize) -> Self {
        Self { way, depth: 0 }
    }
    const fn text(self) -> &'static str {
        FILLINGS[self.way]
    }
    const fn number(self) -> u64 {
        // A type may refuse zero.
        if self.way == 0 { 0 } else { 1 }
    }

    fn inner(self) -> Result<Self, Fault> {
        if self.depth == Self::MAX_DEPTH {
            return Err(Fault::custom("required fields lie too deep"));
        }
        Ok(Self {
            depth: self.depth + 1,
            ..self
        })
    }
}

macro_rules! filled_numbers {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
            visitor.visit_u64(self.number())
        })*
    };
}

macro_rules! filled_texts {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
            visitor.visit_borrowed_str(self.text())
        })*
    };
}

macro_rules! filled {
    ($($method:ident => $visit:ident($($value:expr)?);)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
            visitor.$visit($($value)?)
        })*
    };
}

impl<'de> Deserializer<'de> for Filling {
    type Error = Fault;

    filled! {
        deserialize_any => visit_unit();
        deserialize_bool => visit_bool(false);
        deserialize_f32 => visit_f64(0.0);
        deserialize_f64 => visit_f64(0.0);
        deserialize_char => visit_char(' ');
        deserialize_bytes => visit_borrowed_bytes(&[]);
        deserialize_byte_buf => visit_borrowed_bytes(&[]);
        deserialize_option => visit_none();
        deserialize_unit => visit_unit();
        deserialize_seq => visit_seq(Items::new(&[]));
        deserialize_map => visit_map(Fields::new(&[], &[]));
        deserialize_ignored_any => visit_unit();
    }

    filled_numbers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
    }

    filled_texts! { deserialize_str deserialize_string deserialize_identifier }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_unit()
    }
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self.inner()?)
    }
    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_seq(FilledItems {
            left: length,
            filling: self.inner()?,
        })
    }
    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.deserialize_tuple(length, visitor)
    }
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_map(FilledFields {
            fields: fields.iter(),
            filling: self.inner()?,
        })
    }
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let variant = variants.first().copied().unwrap_or_default();
        visitor.visit_enum(FilledChoice {
            variant,
            filling: self.inner()?,
        })
    }
}

struct FilledItems {
    left: usize,
    filling: Filling,
}

impl<'de> SeqAccess<'de> for FilledItems {
    type Error = Fault;
    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Fault> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(self.filling).map(Some)
    }
}

struct FilledFields {
    fields: std::slice::Iter<'static, &'static str>,
    filling: Filling,
}

impl<'de> MapAccess<'de> for FilledFields {
    type Error = Fault;
    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        match self.fields.next() {
            Some(field) => seed
                .deserialize(BorrowedStrDeserializer::<Fault>::new(field))
                .map(Some),
            None => Ok(None),
        }
    }
    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        seed.deserialize(self.filling)
    }
}

struct FilledChoice {
    variant: &'static str,
    filling: Filling,
}

impl<'de> EnumAccess<'de> for FilledChoice {
    type Error = Fault;
    type Variant = Self;
    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Fault> {
        let variant = seed.deserialize(BorrowedStrDeserializer::<Fault>::new(self.variant))?;
        Ok((variant, self))
    }
}

impl<'de> VariantAccess<'de> for FilledChoice {
    type Error = Fault;
    fn unit_variant(self) -> Result<(), Fault> {
        Ok(())
    }
    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Fault> {
        seed.deserialize(self.filling)
    }
    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Fault> {
        self.filling.deserialize_tuple(length, visitor)
    }
    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.filling.deserialize_struct("", fields, visitor)
    }
}
