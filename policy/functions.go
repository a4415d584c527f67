package policy

import (
	"strings"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
)

// functions lists the built-in functions that policies may call: those whose result depends only on their
// arguments, with time and space that grow with them. Others are unknown to the compiler.
//
// Excluded, with the reason:
//
//	http.send, net.lookup_ip_addr, json.*_schema (fetches references)          the network
//	opa.runtime                                                                 the environment
//	time.now_ns, rand.intn, uuid.rfc4122, io.jwt.encode_*, providers.aws.*     clocks and randomness; now is in the input
//	strings.render_template, yaml.* (aliases), json.marshal_with_options       output of any size from little text
//	bits.lsh, net.cidr_expand, graph.reachable_paths, regex.globs_match        the same in numbers, sets, paths, automata
//	crypto.x509.*, crypto.parse_*, io.jwt.*, graphql.*, rego.parse_module      parsers of formats that no input has
//	trace                                                                      unused output
const functions = `
	abs array.concat array.flatten array.reverse array.slice assign
	base64.decode base64.encode base64.is_valid base64url.decode base64url.encode base64url.encode_no_pad
	bits.and bits.negate bits.or bits.rsh bits.xor ceil concat contains count
	crypto.hmac.equal crypto.hmac.md5 crypto.hmac.sha1 crypto.hmac.sha256 crypto.hmac.sha512
	crypto.md5 crypto.sha1 crypto.sha256 div endswith eq equal floor format_int glob.match glob.quote_meta
	graph.reachable gt gte hex.decode hex.encode indexof indexof_n
	internal.member_2 internal.member_3 internal.print internal.template_string internal.test_case
	intersection is_array is_boolean is_null is_number is_object is_set is_string
	json.filter json.is_valid json.marshal json.patch json.remove json.unmarshal
	lower lt lte max min minus mul neq
	net.cidr_contains net.cidr_contains_matches net.cidr_intersects net.cidr_is_valid net.cidr_merge net.cidr_overlap
	numbers.range numbers.range_step
	object.filter object.get object.keys object.remove object.subset object.union object.union_n or and plus print product
	regex.find_all_string_submatch_n regex.find_n regex.is_valid regex.match regex.replace regex.split regex.template_match
	rego.metadata.chain rego.metadata.rule rem replace round semver.compare semver.is_valid sort split sprintf startswith
	strings.any_prefix_match strings.any_suffix_match strings.count strings.replace_n strings.reverse strings.split_n
	substring sum time.add_date time.clock time.date time.diff time.format time.parse_duration_ns time.parse_ns
	time.parse_rfc3339_ns time.weekday to_number trim trim_left trim_prefix trim_right trim_space trim_suffix
	type_name union units.parse units.parse_bytes upper uri.is_valid uri.parse
	urlquery.decode urlquery.decode_object urlquery.encode urlquery.encode_object uuid.parse walk`

// capabilities are the functions that policies may use.
var capabilities = sync.OnceValue(func() *ast.Capabilities {
	all := ast.CapabilitiesForThisVersion()
	allowed := map[string]bool{}
	for name := range strings.FieldsSeq(functions) {
		allowed[name] = true
	}
	c := *all
	c.Builtins = nil
	for _, b := range all.Builtins {
		if allowed[b.Name] {
			c.Builtins = append(c.Builtins, b)
		}
	}
	c.AllowNet = []string{} // not nil, which would mean every host
	return &c
})
