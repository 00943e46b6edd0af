use super::*;

fn set(settings: &mut Settings, name: &str, value: &str) -> Result<(), &'static str> {
    settings.set(name, Some(value), Lasts::Session).map(drop).map_err(|refusal| refusal.state.0)
}

fn shown(settings: &Settings, name: &str) -> Option<String> {
    settings.get(name).ok().map(str::to_owned)
}

#[test]
fn what_clients_choose_at_connect_and_changes_nothing_is_taken_and_shown() {
    let mut settings = Settings::default();
    for (name, value) in [
        ("jit", "off"),
        ("geqo", "off"),
        ("lc_messages", "C"),
        ("work_mem", "64MB"),
        ("plan_cache_mode", "force_generic_plan"),
        ("default_transaction_deferrable", "off"),
        ("idle_session_timeout", "0"),
    ] {
        assert_eq!(set(&mut settings, name, value), Ok(()), "{name}");
        assert_eq!(shown(&settings, name).as_deref(), Some(value), "{name}");
    }
    // Nobody would end the session.
    assert_eq!(set(&mut settings, "idle_session_timeout", "60s"), Err("22023"));
    assert_eq!(set(&mut settings, "ssl_renegotiation_limit", "0"), Err("42704"));
}

#[test]
fn a_setting_with_a_dot_in_its_name_is_the_clients_own() {
    let mut settings = Settings::default();
    assert_eq!(shown(&settings, "app.user"), None);
    assert_eq!(set(&mut settings, "App.User", "7"), Ok(()));
    assert_eq!(shown(&settings, "app.user").as_deref(), Some("7"));
    settings.begin();
    settings.begin_block(None);
    settings.set("app.user", Some("8"), Lasts::Block).expect("set");
    assert_eq!(shown(&settings, "app.user").as_deref(), Some("8"));
    settings.end_block(true, &mut BytesMut::new());
    assert_eq!(shown(&settings, "app.user").as_deref(), Some("7"));
    settings.set("app.user", Some("9"), Lasts::Session).expect("set");
    settings.set("app.user", None, Lasts::Session).expect("reset");
    assert_eq!(shown(&settings, "app.user").as_deref(), Some("7"));
    for name in ["app.", ".user", "a..b", "a.b-c", "a.1", "a b.c"] {
        assert_eq!(set(&mut settings, name, "1"), Err("42602"), "{name}");
    }
    for number in 1..OWN_MAX {
        assert_eq!(set(&mut settings, &format!("a.n{number}"), "1"), Ok(()));
    }
    assert_eq!(set(&mut settings, "a.more", "1"), Err("54000"));
    assert_eq!(set(&mut settings, "app.user", "2"), Ok(()), "it is there already");
    assert_eq!(set(&mut settings, &format!("a.{}", "b".repeat(200)), "1"), Err("42602"));
}
