//! An object of a request while it is read.
//!
//! A decoder takes out the fields it knows and has the rest noted, so that none is dropped in
//! silence. A field that is null is the same as one that is left out, in all dialects.

use crate::Block;
use crate::decode::{DecodeError, Losses, Path};
use crate::loss::LossKind;
use polar_wire::json::{Fields, Node};
use std::borrow::Cow;

/// What is left of an object's fields.
pub(crate) struct ObjectFields<'a, 'n> {
    pub(crate) fields: Fields<'n>,
    pub(crate) at: &'a Path<'a>,
    /// Whether a field `someName` may be spelled `some_name`.
    either_case: bool,
}

impl<'n> ObjectFields<'_, 'n> {
    pub(crate) fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|(field, value)| !value.is_null() && self.is(field, name))
    }

    fn is(&self, field: &str, name: &str) -> bool {
        field == name || (self.either_case && camel_case(field) == name)
    }

    /// The field with its name as it was sent.
    fn remove_named(&mut self, name: &str) -> Option<(Cow<'n, str>, Node<'n>)> {
        let i = self.fields.iter().rposition(|(field, _)| self.is(field, name))?;
        Some(self.fields.remove(i)).filter(|(_, value)| !value.is_null())
    }

    pub(crate) fn remove(&mut self, name: &str) -> Option<Node<'n>> {
        self.remove_named(name).map(|(_, value)| value)
    }

    /// What `read` makes of a field, if it is there.
    pub(crate) fn optional<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(Node<'n>, &Path<'_>) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        let at = self.at;
        let field = self.remove_named(name);
        field.map(|(name, value)| read(value, &at.field(&name))).transpose()
    }

    /// What `read` makes of a field that has to be there.
    pub(crate) fn required<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(Node<'n>, &Path<'_>) -> Result<T, DecodeError>,
    ) -> Result<T, DecodeError> {
        let at = self.at;
        self.optional(name, read)?
            .ok_or_else(|| at.field(name).missing("send it, it cannot be left out here"))
    }

    pub(crate) fn take(&mut self, name: &str) -> Result<Node<'n>, DecodeError> {
        self.required(name, |value, _| Ok(value))
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<String, DecodeError> {
        self.required(name, |value, at| at.string(value))
    }

    pub(crate) fn optional_string(&mut self, name: &str) -> Result<Option<String>, DecodeError> {
        self.optional(name, |value, at| at.string(value))
    }

    pub(crate) fn optional_bool(&mut self, name: &str) -> Result<Option<bool>, DecodeError> {
        self.optional(name, |value, at| at.bool(&value))
    }

    /// The `type` of a block or an item; `example` says what it could be.
    pub(crate) fn kind(&mut self, example: &str) -> Result<String, DecodeError> {
        let at = self.at.field("type");
        self.optional_string("type")?
            .ok_or_else(|| at.missing(format!("send what kind it is, for example {example:?}")))
    }

    /// Reads over a `type` that may be left out, and refuses another one.
    pub(crate) fn only_kind(&mut self, kind: &str, mend: &str) -> Result<(), DecodeError> {
        let refuse = |value: Node<'n>, at: &Path<'_>| match value.is_text(kind) {
            true => Ok(()),
            false => Err(at.error(format!("is {value}"), mend)),
        };
        self.optional("type", refuse).map(|_| ())
    }

    /// The whole object as JSON text.
    pub(crate) fn as_text(&mut self, kind: &str, losses: &mut Losses) -> Block {
        losses.note(LossKind::BlockAsText, self.at);
        let mut whole = vec![("type".into(), Node::Text(kind.to_owned().into()))];
        whole.append(&mut self.fields);
        Block::Text(Node::Object(whole).to_string())
    }

    pub(crate) fn drop_cache_mark(&mut self, losses: &mut Losses) {
        if self.remove("cache_control").is_some() {
            losses.note(LossKind::CacheControlDropped, &self.at.field("cache_control"));
        }
    }

    pub(crate) fn note_unread(self, losses: &mut Losses) {
        self.note_unread_as(LossKind::UnknownFieldIgnored, losses);
    }

    pub(crate) fn note_unread_as(self, kind: LossKind, losses: &mut Losses) {
        for (name, value) in &self.fields {
            if !value.is_null() {
                losses.note(kind, &self.at.field(name));
            }
        }
    }
}

impl<'a> Path<'a> {
    /// The fields of an object.
    pub(crate) fn fields<'n>(
        &'a self,
        value: Node<'n>,
    ) -> Result<ObjectFields<'a, 'n>, DecodeError> {
        Ok(ObjectFields { fields: self.object(value)?, at: self, either_case: false })
    }

    /// The fields of an object whose names may be in camel case or in snake case.
    pub(crate) fn fields_in_either_case<'n>(
        &'a self,
        value: Node<'n>,
    ) -> Result<ObjectFields<'a, 'n>, DecodeError> {
        Ok(ObjectFields { fields: self.object(value)?, at: self, either_case: true })
    }

    /// What `read` makes of each item of a list.
    pub(crate) fn each<'n, T>(
        &self,
        value: Node<'n>,
        mut read: impl FnMut(Node<'n>, &Path<'_>) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let items = self.list(value)?.into_iter().enumerate();
        items.map(|(i, item)| read(item, &self.index(i))).collect()
    }
}

/// A field's name in camel case.
pub(crate) fn camel_case(name: &str) -> Cow<'_, str> {
    if !name.contains('_') {
        return Cow::Borrowed(name);
    }
    let mut camel = String::with_capacity(name.len());
    let mut after_underscore = false;
    for letter in name.chars() {
        match letter {
            '_' => after_underscore = true,
            letter if after_underscore => {
                after_underscore = false;
                camel.push(letter.to_ascii_uppercase());
            }
            letter => camel.push(letter),
        }
    }
    Cow::Owned(camel)
}
