use super::*;
use crate::terminal::sql::{Statement, parse};

fn found(query: &str) -> Lookup {
    match parse(query).unwrap_or_else(|refusal| panic!("{query}: {}", refusal.message)).remove(0) {
        Statement::Lookup(lookup) => lookup,
        other => panic!("{query}: {other:?}"),
    }
}

fn columns(query: &str) -> Vec<(String, SqlType)> {
    found(query).columns.into_iter().map(|column| (column.name, column.of)).collect()
}

fn rows(query: &str, values: &[Value]) -> Vec<Vec<Value>> {
    let lookup = found(query);
    lookup.check(values).unwrap_or_else(|refusal| panic!("{query}: {}", refusal.message));
    lookup.rows(values)
}

/// psqlODBC, SQLAlchemy, psycopg, postgres.js, Sequelize, psql, JDBC.
const CLIENTS: &[&str] = &[
    "select oid, typbasetype from pg_type where typname = 'lo'",
    "SELECT t.oid, typarray FROM pg_type t JOIN pg_namespace ns ON typnamespace = ns.oid WHERE typname = 'hstore'",
    "SELECT typname AS name, oid, typarray AS array_oid, oid::regtype::text AS regtype, typdelim AS delimiter \
     FROM pg_type t WHERE t.oid = to_regtype($1) ORDER BY t.oid",
    "select b.oid, b.typarray from pg_catalog.pg_type a left join pg_catalog.pg_type b on b.oid = a.typelem \
     where a.typcategory = 'A' group by b.oid, b.typarray order by b.oid",
    "WITH ranges AS (SELECT pg_range.rngtypid, pg_type.typname AS rngtypname, pg_type.typarray AS rngtyparray, \
     pg_range.rngsubtype FROM pg_range LEFT OUTER JOIN pg_type ON pg_type.oid = pg_range.rngtypid) SELECT \
     pg_type.typname, pg_type.typtype, pg_type.oid, pg_type.typarray, ranges.rngtypname, ranges.rngtypid, \
     ranges.rngtyparray FROM pg_type LEFT OUTER JOIN ranges ON pg_type.oid = ranges.rngsubtype WHERE \
     (pg_type.typtype IN('b', 'e'));",
    "SELECT n.nspname as \"Schema\", CASE c.relkind WHEN 'r' THEN 'table' END as \"Type\" FROM pg_catalog.pg_class c LEFT \
     JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r','') AND n.nspname !~ '^pg_toast' \
     AND pg_catalog.pg_table_is_visible(c.oid) ORDER BY 1,2",
    "SELECT NULL AS TABLE_CAT, n.nspname AS TABLE_SCHEM FROM pg_catalog.pg_namespace n, pg_catalog.pg_class c LEFT JOIN \
     pg_catalog.pg_description d ON (c.oid = d.objoid AND d.objsubid = 0) WHERE c.relnamespace = n.oid AND \
     (false OR c.relkind = 'r') AND a IS DISTINCT FROM b ORDER BY TABLE_TYPE",
];

#[test]
fn what_clients_ask_by_themselves_has_columns_and_no_row() {
    for query in CLIENTS.iter().filter(|query| !query.contains("ranges")) {
        assert_eq!(rows(query, &[Value::Text("hstore".into())]), Vec::<Vec<Value>>::new(), "{query}");
    }
    let names = |query| columns(query).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(columns(CLIENTS[0]), [("oid".into(), SqlType::Oid), ("typbasetype".into(), SqlType::Oid)]);
    assert_eq!(names(CLIENTS[2]), ["name", "oid", "array_oid", "regtype", "delimiter"]);
    assert_eq!(found(CLIENTS[2]).parameters, [1]);
    assert_eq!(names(CLIENTS[4])[3..], ["typarray", "rngtypname", "rngtypid", "rngtyparray"]);
    assert_eq!(names(CLIENTS[5]), ["Schema", "Type"]);
    assert_eq!(names(CLIENTS[6]), ["table_cat", "table_schem"]);
}

#[test]
fn columns_are_called_as_by_postgresql() {
    for (column, name, of) in [
        ("relname", "relname", SqlType::Text),
        ("c.oid", "oid", SqlType::Oid),
        ("oid::int8", "oid", SqlType::Int8),
        ("1::int8", "int8", SqlType::Int8),
        ("1::bigint total", "total", SqlType::Int8),
        ("pg_catalog.format_type(a, b)", "format_type", SqlType::Text),
        ("f(a).b", "?column?", SqlType::Text),
        ("relkind = 'r'", "?column?", SqlType::Text),
        ("relkind = 'r' is_table", "is_table", SqlType::Text),
        ("CASE WHEN true THEN 1 END", "case", SqlType::Text),
        ("relhastriggers IS NULL", "?column?", SqlType::Text),
        ("(SELECT 1 FROM pg_index) x", "x", SqlType::Text),
        ("relname::pg_catalog.text", "relname", SqlType::Text),
    ] {
        assert_eq!(columns(&format!("SELECT {column} FROM pg_class c")), [(name.into(), of)], "{column}");
    }
}

#[test]
fn simple_lookups_of_served_types_have_their_rows() {
    let text = |text: &str| Value::Text(text.into());
    let pair = |oid, name: &str| vec![Value::BigInt(oid), text(name)];
    // Ruby's type maps.
    let all = rows(
        "SELECT t.oid, t.typname, t.typelem, t.typdelim, ti.proname AS typinput FROM pg_type as t \
         JOIN pg_proc as ti ON ti.oid = t.typinput",
        &[],
    );
    assert!(all.contains(&vec![Value::BigInt(20), text("int8"), Value::BigInt(0), text(","), text("int8in")]));
    assert_eq!(all.len(), SqlType::all().count());
    // ActiveRecord.
    let named = "SELECT t.oid, t.typname FROM pg_type as t WHERE t.typname IN ('int8', 'timestamp', 'bool')";
    assert_eq!(rows(named, &[]), [pair(16, "bool"), pair(20, "int8")]);
    let numbered = "SELECT t.oid, t.typname, r.rngsubtype FROM pg_type as t LEFT JOIN pg_range as r ON oid = rngtypid \
                    WHERE t.oid IN (20)";
    assert_eq!(rows(numbered, &[]), [[pair(20, "int8"), vec![Value::Null]].concat()]);
    let bound = "SELECT oid, typname FROM pg_catalog.pg_type WHERE typname = $1 AND typtype = 'b' ORDER BY oid";
    assert_eq!(rows(bound, &[text("text")]), [pair(25, "text")]);
    assert_eq!(rows(bound, &[text("json")]), Vec::<Vec<Value>>::new());
}

#[test]
fn sequelize_finds_the_served_types_without_ranges() {
    let all = rows(CLIENTS[4], &[]);
    assert_eq!(all.len(), SqlType::all().count() - 1, "all but void");
    assert!(all.iter().all(|row| row[4..] == [Value::Null, Value::Null, Value::Null]), "{all:?}");
}

/// Elixir's. It needs that of `void`, too, which functions without results return.
#[test]
fn postgrex_finds_the_served_types_and_how_they_are_read() {
    let query = |composed: &str, condition: &str| {
        format!(
            "SELECT t.oid, t.typname, t.typsend, t.typreceive, t.typoutput, t.typinput,\n coalesce(d.typelem, t.typelem), \
             coalesce(r.rngsubtype, 0), {composed}\nFROM pg_type AS t\nLEFT JOIN pg_type AS d ON t.typbasetype = d.oid\n\
             LEFT JOIN pg_range AS r ON r.rngtypid = t.oid OR r.rngmultitypid = t.oid OR (t.typbasetype <> 0 AND \
             r.rngtypid = t.typbasetype)\nWHERE {condition}\n"
        )
    };
    let array = "ARRAY (\n SELECT a.atttypid\n FROM pg_attribute AS a\n WHERE a.attrelid = coalesce(d.typrelid, t.typrelid) \
                 AND a.attnum > 0 AND NOT a.attisdropped\n ORDER BY a.attnum\n)\n";
    let first = "(t.typrelid = 0)\nAND (t.typelem = 0 OR NOT EXISTS (SELECT 1 FROM pg_catalog.pg_type s WHERE \
                 s.typrelid != 0 AND s.oid = t.typelem))";
    let all = query(array, first);
    let names: Vec<_> = columns(&all).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names[5..], ["typinput", "coalesce", "coalesce", "array"]);
    assert!(columns(&all)[6..8].iter().all(|(_, of)| *of == SqlType::Oid));
    let row = |oid, [name, send, receive, output, input]: [&str; 5], composed: &Value| {
        let texts = [name, send, receive, output, input].map(|text| Value::Text(text.into()));
        let zeros = [Value::BigInt(0), Value::BigInt(0)];
        [&[Value::BigInt(oid)][..], &texts[..], &zeros[..], std::slice::from_ref(composed)].concat()
    };
    let none = Value::Text("{}".into());
    assert_eq!(rows(&all, &[]).len(), SqlType::all().count());
    for expected in [
        row(20, ["int8", "int8send", "int8recv", "int8out", "int8in"], &none),
        row(1700, ["numeric", "numeric_send", "numeric_recv", "numeric_out", "numeric_in"], &none),
        row(2278, ["void", "void_send", "void_recv", "void_out", "void_in"], &none),
    ] {
        assert!(rows(&all, &[]).contains(&expected), "{expected:?}");
    }
    let bool = row(16, ["bool", "boolsend", "boolrecv", "boolout", "boolin"], &Value::Null);
    assert_eq!(rows(&query("null", "t.oid IN (16, 16390)"), &[]), [bool]);
}

/// It asks so of a column of a function without results.
#[test]
fn jdbc_finds_no_void() {
    let jdbc = |condition: &str| {
        format!(
            "SELECT typinput='pg_catalog.array_in'::regproc as is_array, typtype, typname, pg_type.oid   FROM \
             pg_catalog.pg_type   LEFT JOIN (select ns.oid as nspoid, ns.nspname, r.r           from pg_namespace as ns \
             join ( select s.r, (current_schemas(false))[s.r] as nspname                   from generate_series(1, \
             array_upper(current_schemas(false), 1)) as s(r) ) as r          using ( nspname )        ) as sp     ON \
             sp.nspoid = typnamespace  WHERE {condition}  ORDER BY sp.r, pg_type.oid DESC"
        )
    };
    let none = Vec::<Vec<Value>>::new();
    assert_eq!(rows(&jdbc("pg_type.oid = $1"), &[Value::BigInt(2278)]), none);
    assert_eq!(rows(&jdbc("typname = $1"), &[Value::Text("void".into())]), none);
    assert_eq!(rows(&jdbc("pg_type.oid = 2278"), &[]), none);
    assert!(found(&jdbc("pg_type.oid = $1")).check(&[Value::BigInt(20)]).is_err());
    let named = "SELECT n.nspname = ANY(current_schemas(true)), n.nspname, t.typname FROM pg_catalog.pg_type t \
                 JOIN pg_catalog.pg_namespace n ON t.typnamespace = n.oid WHERE t.oid = $1";
    assert_eq!(rows(named, &[Value::BigInt(2278)]), none);
    let simple = "SELECT typname FROM pg_type WHERE oid = $1";
    assert_eq!(rows(simple, &[Value::BigInt(2278)]), [[Value::Text("void".into())]]);
}

#[test]
fn parentheses_around_all_of_a_condition_mean_nothing() {
    for condition in [
        "((oid = 20))",
        "((oid = 20) AND (typtype = 'b'))",
        "(oid = 20) AND (typtype = 'b')",
        "((oid = 20) AND ((typtype IN ('b'))))",
        "(((oid IN (20))))",
    ] {
        let query = format!("SELECT oid FROM pg_type WHERE {condition}");
        assert_eq!(rows(&query, &[]), [[Value::BigInt(20)]], "{condition}");
    }
    for condition in ["((oid = 20)", "(oid = 20))", "(oid) = 20", ")oid = 20("] {
        assert!(parse(&format!("SELECT oid FROM pg_type WHERE {condition}")).is_err(), "{condition}");
    }
}

#[test]
fn what_would_have_rows_is_refused() {
    for query in [
        "SELECT datname FROM pg_database",
        "SELECT rolname FROM pg_catalog.pg_roles",
        "SELECT proname FROM pg_proc",
        "SELECT count(*) FROM pg_stat_activity",
        "SELECT count(*) FROM pg_type",
        "SELECT max(oid) FROM pg_class",
        "SELECT * FROM pg_class",
        "SELECT c.* FROM pg_class c",
        "SELECT oid, typacl FROM pg_type",
        "SELECT typacl FROM pg_type WHERE typname = 'int8'",
        "SELECT oid FROM pg_type WHERE oid = to_regtype('bigint')",
        "SELECT oid FROM pg_type WHERE oid = to_regtype('pg_catalog.INT8')",
        "SELECT oid FROM pg_type WHERE typname LIKE 'int%'",
        "SELECT oid FROM pg_type WHERE typname = 'hstore' OR typname LIKE 'int%' AND typname = 'lo'",
        "SELECT oid FROM pg_type WHERE typname = ANY($1)",
        "SELECT oid FROM pg_type WHERE typtype = 'b' LIMIT 50",
        "SELECT oid FROM pg_type WHERE typtype = $1 AND oid < 10000",
        "SELECT t.oid FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace AND n.nspname = 'public'",
        "SELECT t.oid FROM pg_type AS t JOIN pg_type AS d ON t.typbasetype = d.oid",
        "SELECT t.oid FROM pg_type AS t LEFT JOIN pg_type AS d ON t.typelem = d.oid",
        "SELECT t.oid FROM pg_type AS t LEFT JOIN pg_type AS d ON t.typbasetype = d.oid WHERE d.typelem = 0",
        "SELECT oid FROM pg_type WHERE (typelem = 1 OR NOT EXISTS (SELECT 1 FROM pg_type s WHERE s.typrelid != 0))",
        "SELECT oid FROM pg_type WHERE (typlen = 8 OR typlen = 4) AND typtype = 'b'",
        "SELECT oid FROM pg_type WHERE typelem = 0 OR typlen = 8 AND typtype = 'b'",
        "SELECT oid FROM pg_type WHERE (typelem = 0) AND (typrelid = 0",
        "SELECT coalesce(typelem, 1) FROM pg_type",
        "SELECT coalesce(typelem, typacl) FROM pg_type",
        "SELECT ARRAY(SELECT a.oid FROM pg_type a) FROM pg_type",
        "SELECT ARRAY(SELECT count(*) FROM pg_class) FROM pg_type",
        "SELECT ARRAY(SELECT a.oid FROM pg_class a UNION SELECT 1) FROM pg_type",
        "SELECT ARRAY(SELECT a.oid FROM pg_class a) || ARRAY(SELECT a.oid FROM pg_class a) FROM pg_type",
        "SELECT count(*) FROM pg_proc",
        "SELECT oid FROM pg_class UNION SELECT 1",
        "SELECT relname FROM pg_class FULL JOIN pg_database ON true",
        "SELECT relname FROM pg_class, accounts",
        "SELECT relname FROM pg_class, deposit(1, 5)",
        "SELECT relname FROM pg_class WHERE oid IN (SELECT id FROM accounts)",
        "SELECT relname FROM public.pg_class",
        "SELECT relname FROM pg_class WHERE (true",
        "SELECT relname FROM pg_class WHERE true)",
        "WITH a AS (DELETE FROM accounts) SELECT relname FROM pg_class",
        "WITH a AS (SELECT 1) SELECT x FROM a",
        "SELECT a FROM",
    ] {
        assert!(parse(query).is_err(), "{query}");
    }
    let other = found("SELECT oid FROM pg_type WHERE oid = to_regtype($1)");
    assert!(other.check(&[Value::Text("int8".into())]).is_err());
    assert!(other.check(&[Value::BigInt(25)]).is_err());
    assert!(other.check(&[Value::Text("hstore".into()), Value::Null]).is_ok());
}

#[test]
fn a_count_has_a_row_and_every_function_may_write() {
    assert_eq!(rows("SELECT count(*) AS n FROM pg_class WHERE relname = 'accounts'", &[]), [[Value::BigInt(0)]]);
    let volatile = "SELECT count(*) FROM pg_catalog.pg_proc AS p, pg_catalog.pg_namespace AS n WHERE p.proname = 'f' AND \
                    n.oid = p.pronamespace AND n.nspname ~ '.*' AND p.provolatile = 'v'";
    assert_eq!(rows(volatile, &[]), [[Value::BigInt(1)]]);
    assert_eq!(rows(&volatile.replace("'v'", "'i'"), &[]), [[Value::BigInt(0)]]);
}
