//! Functions that clients call.

use alloc::string::String;
use alloc::vec::Vec;

use crate::sys;

/// Makes functions that clients call. Their names are as SQL has them: lowercase letters, digits and `_`. Arguments and
/// results are `bool`, `i64`, `f64`, `String`, `Vec<u8>`, or an `Option` of them where NULL is possible.
///
/// ```
/// awase_program::functions! {
///     /// Comments are possible.
///     fn greet(name: Option<String>) -> String {
///         format!("Hello, {}!", name.unwrap_or("world".to_string()))
///     }
///
///     fn nothing() {}
/// }
/// assert_eq!(greet(None), "Hello, world!");
/// ```
#[macro_export]
macro_rules! functions {
    ($($(#[$meta:meta])* $visible:vis fn $name:ident($($argument:ident: $of:ty),* $(,)?) $(-> $returns:ty)? $body:block)*) => { $(
        $(#[$meta])*
        $visible fn $name($($argument: $of),*) $(-> $returns)? $body

        const _: () = {
            // On the host nothing else may use them.
            const _: usize = { let _ = $name; $crate::internal::length(PARTS) };
            const PARTS: &[&str] = &[
                stringify!($name),
                "(",
                $(stringify!($argument), " ", <$of as $crate::internal::Argument>::SQL, ", ",)*
                ")",
                $(" returns ", <$returns as $crate::internal::Argument>::SQL,)?
                "\n",
            ];

            #[cfg(target_arch = "wasm32")]
            #[used]
            #[unsafe(link_section = "awase")]
            static DESCRIPTION: [u8; $crate::internal::length(PARTS)] = $crate::internal::join(PARTS);

            #[cfg(target_arch = "wasm32")]
            // The linker's name, too: without a prefix, `round` would be that of all code of the module.
            #[unsafe(export_name = concat!("awase:", stringify!($name)))]
            #[allow(unused_assignments, unused_mut, unused_variables)]
            extern "C" fn exported(
                $($argument: <$of as $crate::internal::Argument>::Raw),*
            ) $(-> <$returns as $crate::internal::Return>::Returned)? {
                $crate::internal::begin();
                let mut index = 0;
                $(
                    let $argument = <$of as $crate::internal::Argument>::take($argument, index);
                    index += 1;
                )*
                let returned = $name($($argument),*);
                $(<$returns as $crate::internal::Return>::give(returned))?
            }
        };
    )* };
}

/// Fills a new database: executed once in each, before the first call of any function of the program, in one transaction.
///
/// ```
/// use awase_program::{Table, init};
///
/// static SETTINGS: Table<String, i64> = Table::new("settings");
///
/// init! {
///     SETTINGS.put(&"limit".to_string(), &100);
/// }
/// ```
#[macro_export]
macro_rules! init {
    ($($body:tt)*) => {
        const _: () = {
            #[cfg_attr(target_arch = "wasm32", unsafe(export_name = "awase:init"))]
            extern "C" fn exported() {
                $crate::internal::begin();
                $($body)*
            }
            // On the host nothing calls it.
            const _: extern "C" fn() = exported;
        };
    };
}

/// The length of the joined parts.
pub const fn length(parts: &[&str]) -> usize {
    let mut length = 0;
    let mut index = 0;
    while index < parts.len() {
        length += parts[index].len();
        index += 1;
    }
    length
}

/// The parts, joined: a line of the section that describes a module's functions.
pub const fn join<const N: usize>(parts: &[&str]) -> [u8; N] {
    let mut joined = [0; N];
    let (mut index, mut at) = (0, 0);
    while index < parts.len() {
        let part = parts[index].as_bytes();
        let mut byte = 0;
        while byte < part.len() {
            joined[at] = part[byte];
            at += 1;
            byte += 1;
        }
        index += 1;
    }
    joined
}

/// What a function may be given.
pub trait Argument: Sized {
    /// The type in SQL.
    const SQL: &'static str;
    /// How it is passed.
    type Raw;

    /// Argument `index`.
    fn take(raw: Self::Raw, index: u32) -> Self;
}

/// What a function may return.
pub trait Return: Argument {
    /// How it is returned.
    type Returned;
    /// In place of NULL.
    const NOTHING: Self::Returned;

    fn give(self) -> Self::Returned;
}

macro_rules! number {
    ($($of:ty, $sql:literal, $nothing:literal;)*) => { $(
        impl Argument for $of {
            const SQL: &'static str = $sql;
            type Raw = $of;

            fn take(raw: $of, _index: u32) -> $of {
                raw
            }
        }

        impl Return for $of {
            type Returned = $of;
            const NOTHING: $of = $nothing;

            fn give(self) -> $of {
                self
            }
        }
    )* };
}

number! { i64, "bigint", 0; f64, "double precision", 0.0; }

impl Argument for bool {
    const SQL: &'static str = "boolean";
    type Raw = i32;

    fn take(raw: i32, _index: u32) -> bool {
        raw != 0
    }
}

impl Return for bool {
    type Returned = i32;
    const NOTHING: i32 = 0;

    fn give(self) -> i32 {
        i32::from(self)
    }
}

impl Argument for Vec<u8> {
    const SQL: &'static str = "bytea";
    /// Its length.
    type Raw = usize;

    fn take(length: usize, index: u32) -> Vec<u8> {
        sys::argument(index, length)
    }
}

impl Return for Vec<u8> {
    type Returned = ();
    const NOTHING: () = ();

    fn give(self) {
        sys::reply(&self);
    }
}

impl Argument for String {
    const SQL: &'static str = "text";
    /// Its length.
    type Raw = usize;

    fn take(length: usize, index: u32) -> String {
        String::from_utf8(sys::argument(index, length)).unwrap_or_else(|_| crate::abort("a text is not UTF-8"))
    }
}

impl Return for String {
    type Returned = ();
    const NOTHING: () = ();

    fn give(self) {
        sys::reply(self.as_bytes());
    }
}

macro_rules! nullable {
    ($($of:ty, $sql:literal;)*) => { $(
        impl Argument for Option<$of> {
            const SQL: &'static str = $sql;
            type Raw = <$of as Argument>::Raw;

            fn take(raw: Self::Raw, index: u32) -> Self {
                if sys::is_null(index) { None } else { Some(<$of>::take(raw, index)) }
            }
        }

        impl Return for Option<$of> {
            type Returned = <$of as Return>::Returned;
            const NOTHING: Self::Returned = <$of>::NOTHING;

            fn give(self) -> Self::Returned {
                match self {
                    Some(value) => value.give(),
                    None => {
                        sys::null();
                        Self::NOTHING
                    }
                }
            }
        }
    )* };
}

nullable! {
    bool, "boolean null"; i64, "bigint null"; f64, "double precision null"; String, "text null"; Vec<u8>, "bytea null";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_joined_to_a_line() {
        const PARTS: &[&str] = &["f", "(", "a", " ", <Option<i64> as Argument>::SQL, ", ", ")", "\n"];
        assert_eq!(&join::<{ length(PARTS) }>(PARTS), b"f(a bigint null, )\n");
    }
}
