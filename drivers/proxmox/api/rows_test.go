package api_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
)

// byLibrary reads a list as encoding/json does.
func byLibrary(doc []byte) (list []map[string]json.RawMessage, there bool, err error) {
	var top map[string]json.RawMessage
	if err := json.Unmarshal(doc, &top); err != nil {
		return nil, false, err
	}
	if top["data"] == nil {
		return nil, false, nil
	}
	err = json.Unmarshal(top["data"], &list)
	return list, list != nil, err
}

// FuzzRows checks that whatever is read as a list is one, and says the same as the library finds in it.
func FuzzRows(f *testing.F) {
	for _, doc := range []string{
		`{"data":[{"key":"cores","value":2,"pending":null},{"key":"name","value":"a\"b","delete":1}]}`,
		`{"data":null}`, `{}`, `{"data":[]}`, `{"data":[null,{}]}`, `{"data":{}}`, `{"data":[1]}`, `{"data":[{}],"data":[{}]}`,
		" {\n\"total\" : 1 , \"data\" : [ { \"a\" : [ {\"b\": -0.5e+3} , \"\\u00e9\" , true , false ] } ] }\r\n ",
		`{"data":[{"a":1,"a":2,"\u0062":3,"é":4}]}`, `{"data":[{"a":01}]}`, `{"data":[{"a":1.}]}`, `{"data":[{"a":"` + "\x01" + `"}]}`,
		`{"data":[{"a":1,}]}`, `{"data":[{"a" 1}]}`, `{"data":[{"a":"\x"}]}`, `{"data":[{"a":"\u12g4"}]}`, `{"data":[{"a":nul}]}`, `{"data":[{"a":1}]`, `[]`, ``,
		`{"data":[{"a":` + strings.Repeat("[", 9997) + strings.Repeat("]", 9997) + `}]}`, `{"data":[{"a":` + strings.Repeat("[", 9998) + strings.Repeat("]", 9998) + `}]}`,
	} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		list, there, err := api.ReadRows(doc)
		want, isThere, wrong := byLibrary(doc)
		if err != nil {
			require.True(t, wrong != nil || there || strings.Count(string(doc), "\"")/2 > 1, "%s: %v", doc, err)
			return
		}
		require.NoError(t, wrong, "%s", doc)
		require.Equal(t, isThere, there, "%s", doc)
		require.Len(t, list, len(want), "%s", doc)
		for i := range want {
			require.Len(t, list[i], len(want[i]), "%s", doc)
			for name, val := range want[i] {
				require.Equal(t, string(val), string(list[i][name]), "%s", doc)
			}
		}
	})
}

// What the library writes as a list is read as one.
func TestEveryListIsRead(t *testing.T) {
	scalar := rapid.OneOf(rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.Float64().AsAny(), rapid.Int().AsAny(), rapid.String().AsAny())
	value := rapid.OneOf(scalar, rapid.SliceOfN(scalar, 0, 3).AsAny(), rapid.MapOfN(rapid.String(), scalar, 0, 3).AsAny())
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOf(rapid.MapOf(rapid.String(), value)).Draw(t, "list")
		doc, err := json.MarshalIndent(map[string]any{"data": list, "total": len(list)}, "", strings.Repeat(" ", rapid.IntRange(0, 2).Draw(t, "indent")))
		require.NoError(t, err)
		got, there, err := api.ReadRows(doc)
		require.NoError(t, err)
		require.True(t, there)
		want, _, err := byLibrary(doc)
		require.NoError(t, err)
		require.Len(t, got, len(want))
		for i := range want {
			require.Len(t, got[i], len(want[i]))
			for name, val := range want[i] {
				require.Equal(t, string(val), string(got[i][name]))
			}
		}
	})
}

// A thousand guests are read each minute, so what reading one leaves to the collector
// is counted: nothing that grows with what PVE reports of it.
func TestReadingAListMakesNoGarbage(t *testing.T) {
	var keys []string
	for i := range 40 {
		keys = append(keys, fmt.Sprintf(`{"key":"key%d","value":"value \"%d\"","pending":%d}`, i, i, i))
	}
	doc := []byte(`{"data":[` + strings.Join(slices.Repeat(keys, 10), ",") + `]}`)
	require.LessOrEqual(t, testing.AllocsPerRun(10, func() { api.SkimRows(doc) }), 20.0, "for 400 rows")
}

// Text reads a string as the library does, whatever is in it.
func TestTextIsThatOfTheLibrary(t *testing.T) {
	t.Parallel()
	check := func(t require.TestingT, raw string) {
		var want string
		_ = json.Unmarshal([]byte(raw), &want)
		require.Equal(t, want, api.Text(json.RawMessage(raw)), "%q", raw)
	}
	for _, raw := range []string{
		`""`, `"a"`, `"\""`, `"a\\"`, `"a\nb"`, `"\u00e9\/\ud83d\ude00"`, `"\ud83d"`, `"\ud83dx\n"`, `"\ude00\ud83d"`, "\"\xff\"", "\"\xff\\n\"", `"\u0000"`,
	} {
		check(t, raw)
	}
	rapid.Check(t, func(t *rapid.T) {
		raw, err := json.Marshal(rapid.String().Draw(t, "text"))
		require.NoError(t, err)
		check(t, string(raw))
	})
}
