use super::*;

fn shown(options: &str, name: &str) -> Option<String> {
    let mut settings = Settings::default();
    set_options(&mut settings, options).ok()?;
    settings.get(name).ok().map(str::to_owned)
}

#[test]
fn in_options_a_backslash_protects_a_space() {
    for (options, expected) in [
        (r"-c application_name=a\ b", Some("a b")),
        (r"  -capplication_name=a\ \ b  -c extra_float_digits=3 ", Some("a  b")),
        (r"--application-name=a\\b", Some(r"a\b")),
        (r"-c application_name=a\b\", Some("ab")),
        ("-c\tapplication_name=a", Some("a")),
        ("-c application_name=a b", None),
        (r"-c\ application_name=a", None),
        ("-c", None),
    ] {
        assert_eq!(shown(options, "application_name").as_deref(), expected, "{options}");
    }
}
