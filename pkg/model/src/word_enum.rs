//! Enums with a word for each variant.

/// Declares an enum with a word for each variant: `ALL` in their order, `as_str`, `from_name` and `Display`. With a second text,
/// the first is the variant's `code`, and the second its `message`, which `Display` writes.
#[macro_export]
macro_rules! word_enum {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $crate::word_enum!(@declare $(#[$meta])* $vis $name { $($(#[$doc])* $variant $word),+ } as_str as_str);
    };
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$doc:meta])* $variant:ident = $code:literal, $text:literal),+ $(,)? }) => {
        $crate::word_enum!(@declare $(#[$meta])* $vis $name { $($(#[$doc])* $variant $code),+ } code message);

        impl $name {
            /// Returns the text for people.
            $vis const fn message(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }
        }
    };
    (@declare $(#[$meta:meta])* $vis:vis $name:ident { $($(#[$doc:meta])* $variant:ident $word:literal),+ } $get:ident $shown:ident) => {
        $(#[$meta])*
        $vis enum $name { $($(#[$doc])* $variant),+ }

        impl $name {
            /// All variants, in their order.
            $vis const ALL: [$name; [$($word),+].len()] = [$($name::$variant),+];

            /// Returns the variant's stable word.
            $vis const fn $get(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }

            /// Returns the variant with this word.
            $vis fn from_name(text: &str) -> Option<$name> {
                $name::ALL.into_iter().find(|one| one.$get() == text)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.$shown())
            }
        }
    };
}
