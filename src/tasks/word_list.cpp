#include "tasks/word_list.h"

#include <sstream>

namespace precis {
namespace {

constexpr const char* kNouns =
    // Land, water and sky.
    "river mountain valley forest meadow desert island harbor canyon glacier lagoon prairie "
    "volcano cavern waterfall orchard garden pasture cliff shore beach swamp creek pond ocean "
    "reef summit ridge plateau hillside woodland horizon sunrise sunset moonlight thunder storm "
    "blizzard drizzle breeze tornado rainbow snowflake icicle puddle boulder pebble gravel clay "
    "sand marble granite crystal amber coral fossil comet planet meteor galaxy eclipse shadow "
    // Animals.
    "falcon sparrow pigeon raven heron pelican penguin ostrich parrot pheasant turkey goose swan "
    "rabbit squirrel hedgehog badger beaver otter weasel ferret hamster mouse donkey pony zebra "
    "giraffe camel llama buffalo antelope moose reindeer panther leopard tiger jaguar cheetah "
    "hyena jackal coyote walrus dolphin porpoise whale salmon trout herring mackerel sardine "
    "lobster shrimp oyster octopus jellyfish turtle lizard gecko python cobra beetle cricket "
    "dragonfly butterfly moth spider scorpion snail earthworm hornet mosquito ladybug kitten puppy "
    // Plants and food.
    "maple willow birch cedar cypress juniper poplar walnut chestnut almond hazelnut cashew peanut "
    "acorn blossom petal orchid tulip daisy lavender jasmine sunflower thistle clover ivy moss "
    "fern bamboo cactus mushroom pumpkin cucumber carrot cabbage lettuce spinach broccoli turnip "
    "radish onion garlic potato tomato pepper celery parsley basil ginger cinnamon nutmeg vanilla "
    "mustard vinegar butter cheese yogurt pancake waffle muffin biscuit pretzel noodle dumpling "
    "sandwich sausage omelet pudding custard honey syrup caramel chocolate lemonade coffee cider "
    "cherry apricot peach plum mango papaya coconut banana pineapple melon lemon grapefruit "
    "raspberry cranberry strawberry raisin barley oatmeal popcorn "
    // House and household.
    "kitchen bedroom attic cellar hallway staircase balcony chimney window doorway curtain carpet "
    "cushion pillow blanket mattress cupboard drawer bookshelf wardrobe mirror lantern candle "
    "chandelier fireplace furnace kettle teapot saucer goblet pitcher bottle barrel bucket basket "
    "suitcase backpack wallet umbrella towel sponge broom ladder hammer screwdriver wrench chisel "
    "shovel rake wheelbarrow bolt needle thimble scissors button zipper ribbon lace thread yarn "
    "fabric velvet leather linen cotton wool sweater jacket mitten scarf bonnet apron slipper "
    "sandal boot necklace bracelet earring locket "
    // Town, travel and work.
    "village castle fortress palace cottage cabin temple cathedral lighthouse windmill bridge "
    "tunnel highway avenue sidewalk fountain statue monument museum library theater stadium "
    "market bakery pharmacy hospital factory warehouse workshop laundry barn stable kennel "
    "bicycle scooter tractor truck wagon carriage trolley subway locomotive airplane helicopter "
    "balloon rocket satellite ferry canoe kayak sailboat submarine anchor compass passport "
    "luggage ticket timetable railway platform airport runway garage engine piston gearbox pedal "
    "captain sailor pilot farmer gardener carpenter plumber blacksmith tailor baker butcher "
    "barber dentist surgeon nurse lawyer banker clerk teacher pupil painter sculptor poet "
    "novelist actor dancer singer drummer violinist conductor juggler magician detective "
    "astronaut explorer merchant shepherd "
    // Music, play and learning.
    "violin cello guitar banjo trumpet trombone clarinet flute piano accordion tambourine melody "
    "rhythm chorus orchestra concert festival parade carnival circus puppet marionette doll "
    "marathon tennis hockey soccer baseball volleyball billiards chess domino puzzle riddle "
    "pencil crayon eraser notebook diary envelope postcard stamp newspaper magazine dictionary "
    "alphabet grammar paragraph chapter poem legend fable rumor proverb lecture homework "
    "laboratory telescope microscope thermometer calculator battery magnet pendulum gyroscope "
    "equation triangle rectangle circle cylinder pyramid diagram "
    // Public life and ideas.
    "treaty election parliament senate ambassador governor citizen neighbor cousin nephew uncle "
    "grandmother wedding birthday holiday anniversary ceremony custom harvest auction bargain "
    "invoice receipt budget salary pension insurance mortgage contract warranty courage patience "
    "wisdom curiosity honesty friendship loyalty gratitude laughter sorrow jealousy ambition "
    "destiny miracle mystery adventure journey voyage expedition rescue discovery invention "
    "recipe keyhole doorbell flagpole hourglass typewriter paintbrush toolbox "
    "snowman sandcastle bonfire campsite footprint driveway rooftop basement courtyard vineyard ";

constexpr const char* kAdjectives =
    // Look and size.
    "bright dusty shiny glossy faded golden silver crimson scarlet purple turquoise emerald ivory "
    "pale vivid striped spotted speckled transparent cloudy foggy misty sunny gloomy dazzling "
    "huge tiny gigantic little massive narrow broad slender bulky compact enormous miniature tall "
    "lofty shallow deep steep flat round square oval crooked straight curved pointed blunt jagged "
    "hollow solid tangled tidy messy elegant handsome lovely ugly plain fancy ornate rustic "
    // Touch, taste and sound.
    "smooth rough fluffy fuzzy silky sticky slippery greasy damp moist soaked dry brittle rigid "
    "flexible elastic tender crisp crunchy chewy juicy salty spicy bitter sour sweet bland savory "
    "fragrant stale fresh ripe rotten warm chilly frozen icy scorching lukewarm mild noisy quiet "
    "silent loud hoarse shrill melodic muffled echoing "
    // Character and mood.
    "brave bold timid shy gentle fierce kind cruel generous greedy honest sly clever foolish wise "
    "witty curious eager lazy diligent patient restless calm anxious cheerful merry grumpy "
    "jolly joyful sad lonely proud humble modest vain stubborn obedient loyal faithful "
    "sincere polite rude friendly hostile jealous grateful hopeful fearless careful careless "
    "cautious reckless thoughtful absent sleepy drowsy awake alert weary energetic playful "
    "serious solemn graceful clumsy nimble sturdy fragile mighty feeble vigorous hungry thirsty "
    // Time, place and worth.
    "ancient modern recent early late sudden gradual rapid slow swift steady constant brief "
    "eternal temporary permanent daily weekly annual rare common frequent ordinary peculiar "
    "unusual famous obscure familiar foreign distant nearby remote local northern southern "
    "eastern western coastal rural urban inner outer upper lower central hidden visible secret "
    "public private empty crowded vacant costly cheap precious worthless useful useless handy "
    "valuable genuine fake perfect flawed broken intact "
    // Various.
    "simple complex easy difficult certain doubtful obvious vague exact approximate possible "
    "absurd logical practical magnetic electric mechanical wooden metallic plastic "
    "woolen leafy grassy sandy rocky muddy stony thorny floral tropical arctic lunar solar stellar "
    "royal noble holy heroic legendary mythical magical mysterious haunted enchanted festive "
    "gleaming glowing sparkling flickering whirling floating drifting wandering sleeping singing "
    "dancing smiling whispering blooming ";

std::vector<std::string> split(const char* text) {
  std::istringstream in(text);
  std::vector<std::string> out;
  for (std::string word; in >> word;) out.push_back(word);
  return out;
}

}  // namespace

const std::vector<std::string>& plain_nouns() {
  static const std::vector<std::string> words = split(kNouns);
  return words;
}

const std::vector<std::string>& plain_adjectives() {
  static const std::vector<std::string> words = split(kAdjectives);
  return words;
}

}  // namespace precis
