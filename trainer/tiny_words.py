"""Words for the tiny model's tokenizer, most frequent first; each line of a list weighs as much as its neighbours.

The tokenizer is trained on these lists alone, so that it is the same on every machine and Python version. The words
are those of English prose about programming, and of JSON schemas and shell output, since that is what agent harnesses
put into their prompts.
"""

COMMON = """
the of and to a in is you that it for on with as are be this not or from by at an if can will use your have do all
any when only one which other must should may more than but so no has its was we they their there what how then
them these each before after into out up such also about between over same through both under while where because
without within like make get set new first last next time way work need want used using see ask give take keep let
put run try call go come know think find look show tell say help start stop end begin open close read write change
create add remove delete move copy check test fix build send receive return wait continue finish follow choose
decide explain describe include provide require support allow avoid prefer ensure consider handle manage apply
does did done made given taken known seen said found going being doing making getting running using trying
"""

PROGRAMMING = """
file files folder path name names line lines code text value values type types object array string number boolean
integer list item items key keys data user users system message messages model tool tools function functions class
method methods argument arguments parameter parameters option options command commands shell bash script program
process output input result results error errors warning log logs request response server client session agent
agents task tasks plan project repository branch commit changes diff merge pull push git directory working current
absolute relative default defaults required optional description properties additionalProperties schema content
context prompt query search pattern match matches replace edit edits update updates version number id token tokens
json yaml html http https url link page web fetch download upload network port host local remote environment
variable variables config configuration settings package packages install dependency dependencies module import
export library framework language python javascript typescript node react rust java docker linux windows machine
database table row column index memory cache disk state status event events stream queue thread timeout limit
permission permissions security secret password credentials safe dangerous allowed denied blocked sandbox
background foreground async await promise callback handler hook hooks test tests unit integration failing passing
debug trace stack exception raise catch throw null none true false enum const let var def self print format
markdown comment comments docs documentation example examples instructions instruction guidelines rules rule note
important information details summary question questions answer answers reason reasons step steps feature bug issue
issues review specific general multiple single several different existing following previous additional available
complete completed pending progress start started finished success successful failed failure invalid valid missing
unknown empty full large small long short maximum minimum exact exactly correct incorrect relevant necessary
possible impossible directly immediately automatically instead already always never often sometimes usually
"""

ENGLISH = """
able above across act action actions active actual actually address again against ago agree ahead almost alone along
although among amount another anything appear appropriate area around asked assistant assume attempt author base
based basic become becomes behavior below best better big body book both bottom break bring brief broad business
calls cannot capable careful carefully case cases cause certain character characters chat choice clean clear clearly
combine common communicate community compare concise condition confirm connect consistent contain contains control
conversation correct cost count couple course cover critical custom day days deal decision deep define depend depends
design detail determine develop developer development direct discover discuss display distribution document door
down during early earlier easy edge effect effort either else enable enough entire entry especially even ever every
everything evidence example except execute expect expected experience explicit explicitly express extra fact fall far
fast feel few field fields figure final finally fine focus force form found free frequent fresh friend front future
game gave generate generated good great group grow guess guide half hand happen happy hard head hear held here hidden
high history hold home hope hour house human idea identify image images implement improve include includes indicate
inside intended interest interface internal introduce involve job join just kind knowledge land later lead learn least
leave left less level life light likely list listen literal little live load location logic longer lose lot low main
many mark matter mean means measure meet mention mind minute mode money month morning most mostly much multiple
music natural near nearly never nice night nothing notice now object obvious occur off offer office old once online
only operation opinion order organize original others otherwise own part parts pass past people perform perhaps
period person pick piece place plain play please point points position possible power practice present pretty
prevent primary print problem problems produce professional proper protect public purpose quality quick quickly quite
range rate rather reach ready real really receive recent recommend record reduce refer reference refuse regular
related remember report represent resource respond rest right risk role root round safe sample save scope second
section seem select sense sentence separate series serious serve service share should side similar simple simply since
site size skip slow so soon sort source space special specify speed stage stand standard statement stay step still
store story structure style subject suggest sum sure switch syntax table talk target team technical temporary term
terms third though thought three thus today together too top topic total touch track traditional turn two
understand unique unless until upon useful usual variety verify very view visible voice want water week well were
whatever whether whole whose why wide wish word words world would wrong year years yes yet young yourself
"""

MORE = """
workflow skill loop finding draft something reminder chart title block minute second dynamic invoke app medium inline
external api slash interval omit deploy cloud terminal feedback parallel memory built repo flag delegate label edited
happen verdict phase judgment outside email independent pronoun guidance slug loaded precedence notebook conclusion
artifact complex keyword launch whenever dashboard color slack plugin browser override drop watch spawn isolation
notification sleep cursor schedule poll runtime miss pipeline dimension filter header goal authorize research mid treat
tag paste dedicated neutral indexed automated preference creating written remaining untrusted monitor naming convention
search confident implementation configure graph plot visualization render brand placeholder swap trigger global theme
modify simplify tree reuse efficiency recurring pace stream pricing cache computer extract hit parent millisecond prefix
account offset genuine severe outcome scenario fallback delay fire resolve variant further quiet surface collapse
idle signal scope telemetry orchestrate scale benefit some those could been back per via env args max min info init
utf ascii binary byte encoding escape newline whitespace tab indent quote bracket comma colon semicolon slash dot dash
underscore uppercase lowercase camel snake regex glob wildcard recursive symlink executable chmod sudo root admin owner
assert mock fixture coverage benchmark profile optimize refactor lint type check compile build release publish tag
patch hotfix rollback staging production deployment container image volume cluster node service proxy gateway router
endpoint route middleware payload body header cookie auth login logout register password hash salt encrypt decrypt sign
certificate domain subdomain dns address mask firewall bandwidth latency throughput load balance retry backoff
synchronous asynchronous concurrent lock mutex semaphore deadlock race atomic transaction commit isolation schema
migration model view template controller component widget layout style margin padding border font theme icon button
input form submit validate click scroll drag keyboard mouse touch screen pixel canvas animation transition
today tomorrow yesterday monday tuesday wednesday thursday friday saturday sunday january february march april may june
july august september october november december spring summer autumn winter red green blue white black yellow orange
mother father brother sister child children man woman boy girl friend king queen city country street river mountain sea
sun moon star sky rain snow wind fire tree flower bird dog cat horse fish bread milk coffee tea apple car train ship
France Paris London Europe America China Japan English French German Spanish capital answer equals plus minus zero
one two three four five six seven eight nine ten hundred thousand million half quarter double
"""

PIECES = """
ing ed er est ly tion sion ment ness able ible ful less ous ive al ial ity ance ence ant ent ism ist ize ise ify en
re un dis pre mis over under sub super inter trans con com pro per ex de im in non anti auto micro multi
"""

SYNTAX = """
{"type":"object","properties":{"name":{"type":"string","description":"The name of the thing"}},"required":["name"]}
{"type": "function", "function": {"name": "read_file", "description": "Reads a file", "parameters": {"type": "object"
"additionalProperties": false, "$schema": "http://json-schema.org/draft-07/schema#", "minLength": 1, "maximum": 100
{"name": "write_file", "arguments": {"path": "hello.txt", "content": "hello"}}
{"type": "array", "items": {"type": "string", "enum": ["pending", "in_progress", "completed"]}, "default": 10}
# Heading
## Section
 - **bold**: text in a list. Use `code` and "quotes", e.g. (like this); it's what you don't need.
1. First, do this. 2. Then, do that! 3. Is it done?
<system-reminder> </system-reminder> <example> </example> <tool_response> </tool_response> <tools> </tools>
It isn't, they're, we've, I'll, you'd, let's \u2014 and so on
\u2026 \u201cquoted\u201d \u2018single\u2019 \u2192 \u2022 item \u2713
Note: this `value`, the `other` (see below); e.g. `--flag` or `-x`. IMPORTANT: do NOT do that!
Use "this", not 'that'. What is it? Yes. No, thanks: 3.14, 100%, 2024-01-31, 12:30, $5, #7, @user, a/b, x_y, p-q.
$ git status && ls -la /home/user/project | head -n 20 > out.txt 2>&1
file_path old_string new_string replace_all run_in_background subagent_type tool_use_id
/usr/bin/env /tmp/test.py src/main.ts README.md package.json https://example.com/docs/index.html
def main(argument: str) -> None:
    return [value for value in values if value != 0]
const result = await fetch(url); // comment
    console.log(`${result}`);
if (x == 1) { y += 2; } else { z = x * 3 - 4 / 5; }
"""
