// Admits Pods as kube-apiserver does: by Kubernetes' own plugin for MutatingAdmissionPolicy, in process.
//
// It reads one JSON object from stdin: "documents", which are policies, bindings, namespaces and
// ConfigMaps; "cases", each with a "pod", what is "expected" of it, and a container that is "added" and
// a directory that is put in "front" of each PYTHONPATH by another plugin, which runs after the
// policies, as a webhook does; and "rounds", how often each case is run for its time. For each case it writes a line of JSON: the Pod "admitted", the Pod "expected" in
// the same spelling, an "error", and the "seconds" of the fastest round.
//
// The etcd behind it is client-go's fake one. The chain, its reinvocation, CEL, its cost limits and
// JSONPatch are Kubernetes' own.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/discovery"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/openapi/openapitest"
)

// How long the policies may take until they are compiled.
const patience = time.Minute

// The policy with this name, which is among the documents, annotates each Pod: then all are there.
const ready = "ready"

type question struct {
	Documents []json.RawMessage `json:"documents"`
	Cases     []oneCase         `json:"cases"`
	Rounds    int               `json:"rounds"`
}

type oneCase struct {
	Pod      *corev1.Pod       `json:"pod"`
	Expected *corev1.Pod       `json:"expected"`
	Added    *corev1.Container `json:"added"`
	Front    string            `json:"front"`
}

type answer struct {
	Admitted *corev1.Pod `json:"admitted"`
	Expected *corev1.Pod `json:"expected"`
	Error    string      `json:"error"`
	Seconds  float64     `json:"seconds"`
}

// A client whose server publishes the schemas that client-go carries for its tests.
type client struct{ kubernetes.Interface }

func (c client) Discovery() discovery.DiscoveryInterface {
	return schemas{c.Interface.Discovery()}
}

type schemas struct{ discovery.DiscoveryInterface }

func (schemas) OpenAPIV3() openapi.Client { return openapitest.NewEmbeddedFileClient() }

// The plugin that stands in for a webhook: it adds a container, and is in front of PYTHONPATH, once.
type adder struct {
	container *corev1.Container
	front     string
}

func (*adder) Handles(operation admission.Operation) bool { return operation == admission.Create }

func (a *adder) Admit(_ context.Context, attributes admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := attributes.GetObject().(*corev1.Pod)
	for _, container := range pod.Spec.Containers {
		for i := range container.Env {
			variable := &container.Env[i]
			if variable.Name == "PYTHONPATH" && a.front != "" && !strings.Contains(variable.Value, a.front) {
				variable.Value = a.front + ":" + variable.Value
			}
		}
	}
	if a.container == nil {
		return nil
	}
	for _, there := range pod.Spec.Containers {
		if there.Name == a.container.Name {
			return nil
		}
	}
	pod.Spec.Containers = append([]corev1.Container{*a.container.DeepCopy()}, pod.Spec.Containers...)
	return nil
}

func admit(chain admission.Interface, pod *corev1.Pod) error {
	kind := corev1.SchemeGroupVersion.WithKind("Pod")
	resource := corev1.SchemeGroupVersion.WithResource("pods")
	attributes := admission.NewAttributesRecord(pod, nil, kind, pod.Namespace, pod.Name, resource, "",
		admission.Create, nil, false, &user.DefaultInfo{Name: "somebody"})
	interfaces := admission.NewObjectInterfacesFromScheme(scheme.Scheme)
	return chain.(admission.MutationInterface).Admit(context.Background(), attributes, interfaces)
}

func run() error {
	var asked question
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		return err
	}
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	objects := make([]runtime.Object, 0, len(asked.Documents))
	for _, document := range asked.Documents {
		object, _, err := strict.Decode(document, nil, nil)
		if err != nil {
			return err
		}
		objects = append(objects, object)
	}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	server := client{fake.NewSimpleClientset(objects...)}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)
	factory := informers.NewSharedInformerFactory(server, 0)
	prepared := initializer.New(server, dynamicfake.NewSimpleDynamicClient(scheme.Scheme), factory,
		authorizerfactory.NewAlwaysAllowAuthorizer(), utilfeature.DefaultFeatureGate,
		compatibility.DefaultBuildEffectiveVersion(), ctx.Done(), mapper)
	second := &adder{}
	plugins := admission.NewPlugins()
	mutating.Register(plugins)
	plugins.Register("Adder", func(io.Reader) (admission.Interface, error) { return second, nil })
	none := admission.ConfigProvider(unconfigured{})
	chain, err := plugins.NewFromPlugins([]string{mutating.PluginName, "Adder"}, none, prepared, nil)
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		probe := &corev1.Pod{}
		probe.Name, probe.Namespace = ready, ready
		err = admit(chain, probe)
		if probe.Annotations[ready] != "" {
			break
		}
		if time.Since(began) > patience {
			return fmt.Errorf("no policy after %s: %w", patience, err)
		}
	}

	lines := json.NewEncoder(os.Stdout)
	for _, one := range asked.Cases {
		second.container, second.front = one.Added, one.Front
		said := answer{Expected: one.Expected}
		for round := 0; round < max(asked.Rounds, 1); round++ {
			said.Admitted = one.Pod.DeepCopy()
			began := time.Now()
			err := admit(chain, said.Admitted)
			took := time.Since(began).Seconds()
			if round == 0 || took < said.Seconds {
				said.Seconds = took
			}
			if err != nil {
				said.Error = err.Error()
			}
		}
		// A decoder sets them; a Pod that is converted has none.
		said.Admitted.TypeMeta, said.Expected.TypeMeta = metav1.TypeMeta{}, metav1.TypeMeta{}
		if err := lines.Encode(said); err != nil {
			return err
		}
	}
	return nil
}

type unconfigured struct{}

func (unconfigured) ConfigFor(string) (io.Reader, error) { return nil, nil }

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
