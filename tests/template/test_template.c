/* Chat templates: rendering by Jinja's rules, and refusals with their line. tests/interop/chat_interop.py
 * compares with Jinja itself. */
#include "support/files.h"

#include "base/json.h"
#include "template/template.h"

static const char variables[] =
    "{\"bos_token\": \"<s>\", \"none_\": null, \"messages\": [{\"role\": \"user\", \"content\": \" hi \\n\"},"
    " {\"role\": \"assistant\", \"content\": \"l\\u00e9 </think>x\"}],"
    " \"numbers\": [1234567890123456789, 100.0, 1e5, -0, 1.5e-7, 9223372036854775808, -2.0E22],"
    " \"long\": 123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890,"
    " \"odd\": \"a\\u00ad\\u200b\\u0001\\ue000\\u00e9\\\\\","
    " \"tool\": {\"name\": \"f\", \"n\": [1, 2.5, true, null], \"q\": \"say \\\"x\\\"\"}}";

static ErrorCode render(const char *text, const char *date, Text *out, TemplateSpans *spans, Error *err) {
    Template *t = NULL;
    cJSON *root;
    *err = (Error){0};
    const JsonPlace place = {.where = "variables", .line = 1};
    assert_int_equal(json_parse_literals(place, variables, strlen(variables), &root, err), OK);
    ErrorCode code = template_parse(&t, "chat.jinja", text, strlen(text), err);
    if (code == OK) code = template_render(t, root, date, out, spans, err);
    template_free(t);
    cJSON_Delete(root);
    return code;
}

static void expect(const char *text, const char *wanted) {
    Text out = {0};
    Error err;
    if (render(text, "2025-01-31", &out, NULL, &err) != OK) fail_msg("%s: %s", text, err.message);
    assert_string_equal(out.data ? out.data : "", wanted);
    text_free(&out);
}

static void test_expressions(void **state) {
    (void)state;
    expect("{{ 1 + 2 * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 'a' ~ 1 ~ none }}",
           "7 3 -4 2 3.5 a1None");
    expect("{{ 1 < 2 < 3 }} {{ 1 == 1.0 }} {{ 'b' in 'abc' }} {{ 'x' not in ['x'] }}",
           "True True True False");
    expect("{{ '' or 'd' }} {{ not 1 == 2 }} {{ 'y' if missing is defined else 'n' }}{{ missing }}",
           "d True n");
    expect("{{ messages[-1].role }} {{ messages[1:]|length }} {% for m in messages[::-1] %}{{ m.role[0] }}{% "
           "endfor %}",
           "assistant 1 au");
    expect("{{ messages[1].content[1] }}{{ messages[1].content|length }}{{ "
           "messages[1].content.split('</think>')[-1] }}",
           "\xc3\xa9"
           "12x");
    expect("{{ tool }}", "{'name': 'f', 'n': [1, 2.5, True, None], 'q': 'say \"x\"'}");
    expect("{{ tool|tojson }}", "{\"name\": \"f\", \"n\": [1, 2.5, true, null], \"q\": \"say \\\"x\\\"\"}");
    expect("{{ {'a': [1]}|tojson(indent=2) }} {{ (1, 'a') }}", "{\n  \"a\": [\n    1\n  ]\n} (1, 'a')");
    expect("{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|join|trim }}", "hi");
    expect("{{ 'ab'.startswith(('x', 'a')) }} {{ 'xxaxx'.strip('x') }} {{ 'abab'|replace('a', 'x') }}",
           "True a xbxb");
    expect("{{ strftime_now('%d %b %Y') }}", "31 Jan 2025");
    expect("{{ \"it's\" }} {{ 'a' 'b' }} {{ '\\u00fc\\x41\\q\\n' }}.", "it's ab \xc3\xbc"
                                                                       "A\\q\n.");
}

/* As Python's json.loads, and then str or json.dumps. */
static void test_numbers(void **state) {
    (void)state;
    expect("{{ numbers }}",
           "[1234567890123456789, 100.0, 100000.0, 0, 1.5e-07, 9223372036854775808, -2e+22]");
    expect("{{ numbers|tojson }}",
           "[1234567890123456789, 100.0, 100000.0, 0, 1.5e-07, 9223372036854775808, -2e+22]");
    expect("{{ long }}",
           "123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890");
    expect("{{ long is integer }} {{ long > numbers[5] }} {{ numbers[5] == 9223372036854775807 if false else "
           "numbers[5] > numbers[0] }} {{ numbers[1] is float }} {{ numbers[1] == 100 }}",
           "True True True True True");
    expect("{{ '123456789012345678901'|int }} {{ numbers[6]|int }} {{ '007'|int }} {{ -2.5|int }}",
           "123456789012345678901 -20000000000000000000000 7 -2");
}

/* Characters that Python's repr escapes; strings that are HTML-escaped. */
static void test_text_forms(void **state) {
    (void)state;
    expect("{{ [odd] }}", "['a\\xad\\u200b\\x01\\ue000\xc3\xa9\\\\']");
    expect("{{ '<a>' | e }}{{ '<' ~ ('<'|safe) }}{{ '<' + ('<'|safe) + '&' }}{{ ['<'|safe] }}",
           "&lt;a&gt;<<&lt;<&amp;[Markup('<')]");
    expect("{{ ('a<'|safe).replace('a', '>') }}{{ ('a<'|safe)|replace('a', '>') }}{{ '<'|e|e }}",
           "&gt;<><&lt;");
}

static void test_order(void **state) {
    (void)state;
    expect("{{ {'b': 1, 'A': 2}|dictsort }} {{ {'x': 2, 'y': 1}|dictsort(by='value', reverse=true) }}",
           "[('A', 2), ('b', 1)] [('x', 2), ('y', 1)]");
    expect("{{ ['b', 'A', 'a', 'B']|sort }} {{ ['b', 'A', 'a']|sort(case_sensitive=true, reverse=true) }}",
           "['A', 'a', 'b', 'B'] ['b', 'a', 'A']");
    expect("{{ messages|sort(attribute='role')|map(attribute='role')|list }}", "['assistant', 'user']");
    expect("{{ [3, 1, 2.5]|min }} {{ ['b', 'C']|max }} {{ []|min is defined }}", "1 C False");
    expect("{{ ['b', 'B', 1, 1.0, true]|unique|list }}", "['b', 1]");
}

static void test_more_builtins(void **state) {
    (void)state;
    expect("{{ 'hello wORLD-x'|title }} {{ \"it's\".title() }} {{ '\xc3\xa9'|upper }}",
           "Hello World-X It'S \xc3\x89");
    expect("{{ '%s is %d%%'|format('x', 3) }} {{ '%s' % [1] }} {{ '{}{1}{{}}{a}'.format('x', 'y', a=2) }}",
           "x is 3% [1] xy{}2");
    expect("{{ 'a\n\nb'|indent(2) }}|{{ 'a'|indent(1, true) }}|{{ 'ab' * 2 }}", "a\n\n  b| a|abab");
    expect("{{ tool|tojson(separators=(',', ':')) }}",
           "{\"name\":\"f\",\"n\":[1,2.5,true,null],\"q\":\"say \\\"x\\\"\"}");
    expect("{{ ['\xc3\xa9\xf0\x9f\x99\x82']|tojson(ensure_ascii=true) }}", "[\"\\u00e9\\ud83d\\ude42\"]");
    expect("{{ ('{\"a\": [1e5, 12345678901234567890]}'|from_json).a }}", "[100000.0, 12345678901234567890]");
    expect("{{ {1: 'a', 1.0: 'b'}[1] }} {{ {1: 2}|tojson }} {{ tool.items is defined }}",
           "b {\"1\": 2} True");
    expect("{{ 'a,b,c'.rsplit(',', 1) }} {{ 'a\r\nb\n'.splitlines() }} {{ none|map('upper')|list }}",
           "['a,b', 'c'] ['a', 'b'] []");
    expect(
        "{% filter upper|trim %} a {% endfilter %}{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% "
        "endmacro %}{{ a() }}",
        "AB");
    expect("{% if false %}{{ messages.append(1) }}{% endif %}.", ".");
}

static void test_statements(void **state) {
    (void)state;
    expect("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set k = 1 %}{% "
           "endfor %}"
           "{{ ns.n }}{{ k is defined }}",
           "2False");
    expect("{% for i in range(6) if i % 2 == 0 %}{% if i == 4 %}{% break %}{% endif %}{{ loop.index }}:{{ i "
           "}}{{ loop.last }} "
           "{% else %}none{% endfor %}",
           "1:0False 2:2False ");
    expect("{% for x in [] %}a{% else %}none{% endfor %}{% for k, v in tool.items() %}{{ k }}{% endfor %}",
           "nonenamenq");
    expect("{% macro m(a, b='d') %}<{{ a }}{{ b }}>{% endmacro %}{{ m(1) }}{{ m('x', b=2) }}", "<1d><x2>");
    expect("{% set t %}a{{ 1 }}{% endset %}[{{ t }}]{% if none_ %}x{% elif none_ is none %}y{% endif %}",
           "[a1]y");
}

/* trim_blocks and lstrip_blocks, as transformers sets them. */
static void test_white_space(void **state) {
    (void)state;
    expect("{% if true %}\n  yes\n{% endif %}\n  {% for i in [1] %}\n  {{ i }}\n  {% endfor %}\nend\n",
           "  yes\n  1\nend");
    expect("a\n   {%- if true %}\n\n b\n   {%- endif %}\n\nc\n\n", "a\n b\nc\n");
    expect("x {%+ if true +%}\n y {% endif %}z", "x \n y z");
    expect("  {# note #}\n  text {#- note -#} \n t", "  textt");
    expect("a\r\nb {{- ' c' -}} \n d", "a\nb cd");
}

static void test_generation(void **state) {
    (void)state;
    Text out = {0};
    TemplateSpans spans = {0};
    Error err;
    assert_int_equal(
        render("a{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}|{% endfor %}", NULL,
               &out, &spans, &err),
        OK);
    assert_string_equal(out.data, "auser|assistant|");
    assert_int_equal(spans.count, 2);
    assert_int_equal(spans.items[0].begin, 1);
    assert_int_equal(spans.items[1].end, 15);
    template_spans_free(&spans);
    text_free(&out);
}

static void refuse(const char *text, const char *where, const char *wanted) {
    Text out = {0};
    Error err;
    assert_int_equal(render(text, NULL, &out, NULL, &err), ERR_DATA);
    if (!strstr(err.message, where) || !strstr(err.message, wanted)) fail_msg("%s: %s", text, err.message);
    text_free(&out);
}

/* Refused by name and line, also in a branch that is never reached. */
static void test_refusals(void **state) {
    (void)state;
    refuse("\n\n{% if false %}\n{{ x|wordwrap(3) }}{% endif %}", "chat.jinja:4:", "filter wordwrap");
    refuse("{{ messages|tojson('x', 'y', ['z']) }}", ":1:", "tojson");
    refuse("{{ '%x'|format(1) }}", ":1:", "%x");
    refuse("{{ '{:>3}'.format(1) }}", ":1:", "{:>3}");
    refuse("{{ 'x' * 999999999999 }}", ":1:", "MiB");
    refuse("{{ [{}]|unique|list }}", ":1:", "hash");
    refuse("{{ [1, 'a']|sort }}", ":1:", "no order");
    refuse("{{ '{'|from_json }}", ":1:", "from_json");
    refuse("{{ '\xc3\x9f'|upper }}", ":1:", "U+00DF");
    refuse("{{ 1 is prime }}", "chat.jinja:1:", "test prime");
    refuse("{{ messages.append(1) }}", ":1:", ".append()");
    refuse("{{ lipsum() }}", ":1:", "function lipsum");
    refuse("a\n{% include 'x' %}", ":2:", "include");
    refuse("{% for a in b recursive %}{% endfor %}", ":1:", "recursive");
    refuse("{% if true %}\n\na", ":1:", "endif");
    refuse("{% break %}", ":1:", "outside of a loop");
    refuse("{{ 'a }}", ":1:", "does not end");
    refuse("{{ missing.role }}", ":1:", "'missing' is undefined");
    refuse("{{ 'a' + 1 }}", ":1:", "a string and a whole number");
    refuse("{{ raise_exception('only users') }}", ":1:", "only users");
    refuse("{{ strftime_now('%Y') }}", ":1:", "data.chat_date");
    refuse("{% generation %}{% set x %}{% generation %}a{% endgeneration %}{% endset %}{% endgeneration %}",
           ":1:", "generation");
}

/* Work and memory are bounded, whatever the template. */
static void test_bounds(void **state) {
    (void)state;
    refuse("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
           ":1:", "more than");
    refuse("{% set ns = namespace(x='aaaaaaaaaaaaaaaa') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x "
           "%}{% endfor %}",
           ":1:", "MiB");
    refuse("{% set ns = namespace(x=1) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
           "{{ ns.x }}",
           ":1:", "parts");
    refuse("{% set ns = namespace(x=1) %}{% for i in range(999) %}{% set ns.x = dict(a=ns.x) %}{% endfor %}"
           "{{ ns.x }}",
           ":1:", "levels");
    refuse("{% set l = range(99999)|list %}{% for a in l %}{{ 'x' in l }}{% endfor %}",
           ":1:", "come to an end");
    refuse("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", ":1:", "deep");
    refuse("{{ range(1000000) }}", ":1:", "range");
    Text deep = {0};
    for (int i = 0; i < 5000; i++) text_puts(&deep, i == 0 ? "{{ " : "(");
    refuse(deep.data, ":1:", "deep");
    text_free(&deep);
}

/* ---- growing conversations ---- */

enum { TALK = 6 };
static const char talk[] =
    "{\"bos_token\": \"<s>\", \"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": "
    "\"user\", "
    "\"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\"}, {\"role\": \"user\", \"content\": "
    "\"r\"}, "
    "{\"role\": \"tool\", \"content\": \"t\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}";

/* A separate rendering of the first `count` messages. */
static ErrorCode render_some(const Template *t, const cJSON *all, int count, bool prompt, Text *out,
                             Error *err) {
    cJSON *some = cJSON_Duplicate(all, true), *messages = cJSON_GetObjectItem(some, "messages");
    while (cJSON_GetArraySize(messages) > count) cJSON_DeleteItemFromArray(messages, count);
    cJSON_AddBoolToObject(some, "add_generation_prompt", prompt);
    ErrorCode code = template_render(t, some, NULL, out, NULL, err);
    cJSON_Delete(some);
    return code;
}

/* Each incremental rendering equals a separate one, including errors. Returns the number of bytes that are
 * known to stay. */
static size_t check_growth(const char *text) {
    Template *t = NULL;
    cJSON *all;
    Error err = {0};
    assert_int_equal(json_parse("talk", talk, strlen(talk), &all, &err), OK);
    assert_int_equal(template_parse(&t, "chat.jinja", text, strlen(text), &err), OK);
    TemplateGrowth *g = template_growth_open(t, all, NULL);
    for (int i = 0; i <= 2 * TALK + 1; i++) {
        Text alone = {0};
        const Text *grown;
        Error a = {0}, b = {0};
        bool prompt = i % 2 == 1;
        ErrorCode code = render_some(t, all, i / 2, prompt, &alone, &a);
        assert_int_equal(template_growth_render(g, (size_t)i / 2, prompt, &grown, &b), code);
        assert_string_equal(a.message, b.message);
        if (code == OK) assert_string_equal(grown->length ? grown->data : "", alone.length ? alone.data : "");
        text_free(&alone);
    }
    size_t kept = template_growth_kept(g);
    template_growth_close(g);
    template_free(t);
    cJSON_Delete(all);
    return kept;
}

static void test_growth(void **state) {
    (void)state;
    /* These resume: what they look at does not change. */
    static const char *const goes_on[] = {
        "{% for m in messages %}<{{ m.content }}>{% endfor %}{% if add_generation_prompt %}:{% endif %}",
        "{% if messages and messages[0].role == 'system' %}{{ messages[0].content }}{% set rest = "
        "messages[1:] %}{% "
        "else %}{% set rest = messages %}{% endif %}{% for m in rest %}<{{ m.content }}>{% endfor %}{{ "
        "rest|length "
        "}}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ m.role "
        "}}{% if "
        "loop.last and add_generation_prompt %}!{% endif %}{% endfor %}{{ ns.n }}{{ messages[-1].role }}",
        "{% for m in messages %}{{ m.role }}{{ '.' if not loop.last else '!' }}{{ loop.nextitem.role if "
        "loop.nextitem "
        "is defined }}{% endfor %}",
        "{% for m in messages %}{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}|{% endif %}{{ "
        "m.role "
        "}}{% endfor %}",
        "{% set add_generation_prompt = add_generation_prompt|default(false) %}{% for m in messages %}{{ "
        "m.role }}{% "
        "endfor %}{{ add_generation_prompt }}",
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{{ "
        "m.role }}{% "
        "endfor %}",
        ("{% for m in messages %}{% if m.role == 'tool' %}{% break %}{% endif %}{{ m.role }}{% endfor %}{{ "
         "messages|length }}{% for m in messages %}{{ m.content }}{% endfor %}"),
        "{% for m in messages %}{% set outer = loop %}{% for x in [1, 2] %}{{ outer['index'] }}{{ "
        "outer.first "
        "}}{% endfor %}{% endfor %}"};
    /* These start over, since they look at the end before they reach it. */
    static const char *const anew[] = {
        "{{ messages|length }}{% for m in messages %}{{ m.role }}{% endfor %}",
        "{{ messages[-1].role }}{% for m in messages %}{{ m.role }}{% endfor %}",
        "{% for m in messages[::-1] %}{{ m.role }}{% endfor %}{% for m in messages %}{{ m.role }}{% endfor "
        "%}",
        "{% if add_generation_prompt %}!{% endif %}{% for m in messages %}{{ m.role }}{% endfor %}",
        "{% macro f() %}{{ messages|length }}{% endmacro %}{{ f() }}{% for m in messages %}{{ m.role }}{% "
        "endfor %}",
        "{% if true %}{% for m in messages %}{{ m.role }}{% endfor %}{% endif %}",
        "{% for m in messages if m.role != 'tool' %}{{ m.role }}{{ loop.last }}{% endfor %}",
        "{% set list = [messages] %}{% for m in messages %}{{ list[0]|length }}{% endfor %}",
        "{% for m in messages %}{% for name, v in loop|items %}{{ name }}{{ v }}{% endfor %}{% endfor %}",
        "{% set ns = namespace(of=none) %}{% for m in messages %}{% if ns.of %}{{ ns.of.length }}{% endif "
        "%}{% set ns.of = loop %}{% endfor %}"};
    for (size_t i = 0; i < sizeof goes_on / sizeof *goes_on; i++)
        if (check_growth(goes_on[i]) == 0 && i != 6) fail_msg("%s: begins again", goes_on[i]);
    for (size_t i = 0; i < sizeof anew / sizeof *anew; i++)
        if (check_growth(anew[i]) > 0) fail_msg("%s: goes on", anew[i]);
    check_growth("{% for m in messages %}{{ loop.length }}{{ loop.revindex }}{% endfor %}");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expressions), cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_text_forms),  cmocka_unit_test(test_growth),
        cmocka_unit_test(test_order),       cmocka_unit_test(test_more_builtins),
        cmocka_unit_test(test_statements),  cmocka_unit_test(test_white_space),
        cmocka_unit_test(test_generation),  cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_bounds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
