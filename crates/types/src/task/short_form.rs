//! Parts of a task that may be written as one word.

/// Lets a struct be written as a bare string too. The struct derives its object form
/// under serde's `remote = "Self"`, so that its fields are listed once; this gives it
/// the trait impls, with `$from_short` for the bare string.
macro_rules! short_form {
    ($name:ident, $expected:literal, $from_short:expr) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                $name::serialize(self, s)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                struct Either;
                impl<'de> Visitor<'de> for Either {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }
                    fn visit_str<E: de::Error>(self, word: &str) -> Result<$name, E> {
                        let build: fn(&str) -> Result<$name, String> = $from_short;
                        build(word).map_err(E::custom)
                    }
                    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<$name, A::Error> {
                        $name::deserialize(MapAccessDeserializer::new(map))
                    }
                }
                d.deserialize_any(Either)
            }
        }
    };
}

pub(super) use short_form;
